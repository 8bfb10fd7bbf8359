//! The metric set. Rank, communicator and sequence number are never labels: they belong in verdicts.
//!
//! Values come from a [`Snapshot`] that the agent's loop replaces, so a scrape never waits for the loop.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, prometheus_text, text},
    metrics::MetricType,
    registry::Registry,
};

/// What is exported.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    pub traced_processes: u64,
    pub blind_processes: u64,
    pub libraries: u64,
    pub communicators: u64,
    /// By eBPF program.
    pub probes: BTreeMap<&'static str, u64>,
    pub events: u64,
    /// By stage and reason.
    pub dropped: BTreeMap<&'static str, u64>,
    /// Calls seen, by collective (or send, recv).
    pub operations: BTreeMap<&'static str, u64>,
    /// Bytes of those calls, count × size of the type.
    pub bytes: BTreeMap<&'static str, u64>,
    pub longest_wait_seconds: f64,
    /// Ranks by where their transfers stand.
    pub standings: BTreeMap<&'static str, u64>,
    pub flow_samples: u64,
    /// Operations in the samples.
    pub flow_operations: u64,
    /// What samples lack, by reason.
    pub flow_gaps: BTreeMap<&'static str, u64>,
    /// By rule and severity.
    pub active: BTreeMap<(&'static str, &'static str), u64>,
    /// By rule.
    pub raised: BTreeMap<&'static str, u64>,
    pub cpu_seconds: f64,
    pub resident_bytes: u64,
}

/// Where the loop leaves its newest snapshot.
#[derive(Clone, Debug, Default)]
pub struct Shared(Arc<Mutex<Snapshot>>);

impl Shared {
    pub fn set(&self, snapshot: Snapshot) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = snapshot;
    }

    fn get(&self) -> Snapshot {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// One metric: its name (without `mycroft_` and `_total`), help and how to write it.
struct Metric {
    name: &'static str,
    help: &'static str,
    kind: MetricType,
    write: fn(&Snapshot, &mut MetricEncoder<'_>) -> std::fmt::Result,
}

fn gauges(m: &mut MetricEncoder<'_>, label: &'static str, values: &BTreeMap<&'static str, u64>) -> std::fmt::Result {
    for (key, value) in values {
        m.encode_family(&[(label, *key)])?.encode_gauge(value)?;
    }
    Ok(())
}

fn counters(m: &mut MetricEncoder<'_>, label: &'static str, values: &BTreeMap<&'static str, u64>) -> std::fmt::Result {
    for (key, value) in values {
        m.encode_family(&[(label, *key)])?.encode_counter::<NoLabelSet, _, u64>(value, None)?;
    }
    Ok(())
}

const METRICS: &[Metric] = &[
    Metric {
        name: "build_info",
        help: "Version of this agent, always 1",
        kind: MetricType::Gauge,
        write: |_, m| m.encode_family(&[("version", env!("CARGO_PKG_VERSION"))])?.encode_gauge(&1u64),
    },
    Metric {
        name: "traced_processes",
        help: "Living processes that map NCCL and whose calls are seen",
        kind: MetricType::Gauge,
        write: |s, m| m.encode_gauge(&s.traced_processes),
    },
    Metric {
        name: "blind_processes",
        help: "Living processes that map NCCL but can not be traced",
        kind: MetricType::Gauge,
        write: |s, m| m.encode_gauge(&s.blind_processes),
    },
    Metric {
        name: "libraries",
        help: "NCCL library files with probes",
        kind: MetricType::Gauge,
        write: |s, m| m.encode_gauge(&s.libraries),
    },
    Metric {
        name: "communicators",
        help: "Communicators known",
        kind: MetricType::Gauge,
        write: |s, m| m.encode_gauge(&s.communicators),
    },
    Metric {
        name: "probe_attached",
        help: "Library files to which each probe is attached",
        kind: MetricType::Gauge,
        write: |s, m| gauges(m, "probe", &s.probes),
    },
    Metric {
        name: "events",
        help: "Events read from the kernel",
        kind: MetricType::Counter,
        write: |s, m| m.encode_counter::<NoLabelSet, _, u64>(&s.events, None),
    },
    Metric {
        name: "events_dropped",
        help: "Events or facts lost, by stage; each is also told in the verdicts that it touches",
        kind: MetricType::Counter,
        write: |s, m| counters(m, "stage", &s.dropped),
    },
    Metric {
        name: "collectives_started",
        help: "Calls of collectives, sends and receives",
        kind: MetricType::Counter,
        write: |s, m| counters(m, "collective", &s.operations),
    },
    Metric {
        name: "collective_bytes",
        help: "Bytes of these calls, elements times size of the type",
        kind: MetricType::Counter,
        write: |s, m| counters(m, "collective", &s.bytes),
    },
    Metric {
        name: "ranks",
        help: "Ranks by where their transfers stand; one that takes part in several communicators counts in each",
        kind: MetricType::Gauge,
        write: |s, m| gauges(m, "standing", &s.standings),
    },
    Metric {
        name: "flow_samples",
        help: "Looks at the transfers of a communicator in a process's memory",
        kind: MetricType::Counter,
        write: |s, m| m.encode_counter::<NoLabelSet, _, u64>(&s.flow_samples, None),
    },
    Metric {
        name: "flow_operations",
        help: "Proxy operations read in these looks",
        kind: MetricType::Counter,
        write: |s, m| m.encode_counter::<NoLabelSet, _, u64>(&s.flow_operations, None),
    },
    Metric {
        name: "flow_gaps",
        help: "What these looks lack, or had to read again, by reason",
        kind: MetricType::Counter,
        write: |s, m| counters(m, "reason", &s.flow_gaps),
    },
    Metric {
        name: "longest_wait_seconds",
        help: "Longest time for which a rank has kept its communicator waiting now",
        kind: MetricType::Gauge,
        write: |s, m| m.encode_gauge(&s.longest_wait_seconds),
    },
    Metric {
        name: "verdict_active",
        help: "Verdicts in force",
        kind: MetricType::Gauge,
        write: |s, m| {
            for ((rule, severity), n) in &s.active {
                m.encode_family(&[("rule", *rule), ("severity", *severity)])?.encode_gauge(n)?;
            }
            Ok(())
        },
    },
    Metric {
        name: "verdicts",
        help: "Verdicts raised",
        kind: MetricType::Counter,
        write: |s, m| counters(m, "rule", &s.raised),
    },
    Metric {
        name: "agent_cpu_seconds",
        help: "CPU time that the agent itself has used",
        kind: MetricType::Counter,
        write: |s, m| m.encode_counter::<NoLabelSet, _, u64>(&s.cpu_seconds, None),
    },
    Metric {
        name: "agent_resident_memory_bytes",
        help: "Memory that the agent itself holds",
        kind: MetricType::Gauge,
        write: |s, m| m.encode_gauge(&s.resident_bytes),
    },
];

impl Collector for Shared {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let snapshot = self.get();
        for metric in METRICS {
            let mut m = encoder.encode_descriptor(metric.name, metric.help, None, metric.kind)?;
            (metric.write)(&snapshot, &mut m)?;
        }
        Ok(())
    }
}

/// The text form in which metrics are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// `application/openmetrics-text; version=1.0.0`.
    OpenMetrics,
    /// `text/plain; version=0.0.4`.
    Prometheus,
}

impl Form {
    /// From a request's `Accept` header.
    #[must_use]
    pub fn accepted(accept: &str) -> Self {
        if accept.contains("application/openmetrics-text") { Self::OpenMetrics } else { Self::Prometheus }
    }

    #[must_use]
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// The registry: every series carries the host's name, as dcgm-exporter's do.
#[must_use]
pub fn registry(shared: &Shared, hostname: &str) -> Registry {
    let labels = [("hostname".into(), hostname.to_owned().into())];
    let mut registry = Registry::with_prefix_and_labels("mycroft", labels.into_iter());
    registry.register_collector(Box::new(shared.clone()));
    registry
}

/// Writes all metrics.
///
/// # Errors
/// Only if a metric's own encoding fails.
pub fn render(registry: &Registry, form: Form) -> Result<String, std::fmt::Error> {
    let mut out = String::new();
    match form {
        Form::OpenMetrics => text::encode(&mut out, registry)?,
        Form::Prometheus => prometheus_text::encode(&mut out, registry)?,
    }
    Ok(out)
}

/// docs/metrics.md.
#[must_use]
pub fn page() -> String {
    let mut out = String::from(
        "# Metrics

Served by `mycroft agent` under `/metrics`, as OpenMetrics or in Prometheus' older text form, as the client asks. Every
series carries `hostname`. Rank, communicator and sequence number are never labels: they belong in verdicts. A node has
at most 170 series. This page is written by a test (`UPDATE_DOCS=1 cargo xtask test pages`).

| name | type | meaning |
| --- | --- | --- |
",
    );
    for m in METRICS {
        let (suffix, kind) = match m.kind {
            MetricType::Counter => ("_total", "counter"),
            _ => ("", "gauge"),
        };
        out += &format!("| `mycroft_{}{suffix}` | {kind} | {} |\n", m.name, m.help);
    }
    out += "
`stage` of `mycroft_events_dropped_total`: `ring_full` the kernel's ring buffer was full (the newest state is read from
the kernel's own copy); `info_unreadable`, `comm_unreadable` memory of the process was not readable or the library has
no layout; `comms_full`, `processes_full`, `groups_full` a kernel map was full; `undecodable` a record of unknown kind;
`unidentified`, `implausible`, `refused` an event that did not fit the model.

`reason` of `mycroft_flow_gaps_total`: `read_again` an operation changed while it was read, and was read again;
`given_up` it changed at every try and is left to the next look; `contradictory` its counters contradicted each other;
`queue_full` the agent had no time for a look; `unreadable` a communicator's memory could not be read.
";
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Snapshot {
        Snapshot {
            dropped: [("ring_full", 3)].into(),
            operations: [("AllReduce", 7)].into(),
            active: [(("MYC001", "critical"), 1)].into(),
            ..Snapshot::default()
        }
    }

    #[test]
    fn both_forms_carry_the_same_series() {
        let shared = Shared::default();
        shared.set(sample());
        let registry = registry(&shared, "node1");
        for form in [Form::OpenMetrics, Form::Prometheus] {
            let out = render(&registry, form).unwrap();
            for line in [
                "mycroft_events_dropped_total{stage=\"ring_full\",hostname=\"node1\"} 3",
                "mycroft_collectives_started_total{collective=\"AllReduce\",hostname=\"node1\"} 7",
                "mycroft_verdict_active{rule=\"MYC001\",severity=\"critical\",hostname=\"node1\"} 1",
            ] {
                let labels = |l: &str| {
                    let mut v: Vec<String> = l.split(['{', '}', ',', ' ']).map(str::to_owned).collect();
                    v.sort();
                    v
                };
                assert!(out.lines().any(|l| labels(l) == labels(line)), "{form:?} lacks {line}:\n{out}");
            }
        }
    }

    #[test]
    fn names_follow_the_conventions() {
        for m in METRICS {
            assert!(m.name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{}", m.name);
            assert!(!m.name.ends_with("_total"), "{}: the encoder adds it", m.name);
            assert!(!m.help.ends_with('.') && !m.help.is_empty(), "{}", m.name);
        }
    }

    #[test]
    fn the_form_is_the_clients_choice() {
        assert_eq!(Form::accepted("application/openmetrics-text;version=1.0.0,text/plain;q=0.5"), Form::OpenMetrics);
        assert_eq!(Form::accepted("*/*"), Form::Prometheus);
    }
}
