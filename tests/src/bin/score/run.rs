//! One scenario through model and rules, as the agent's loop does it.

use mycroft_agent::{
    event::{Body, HostId, Nanos},
    model::State,
    rules::{Change, Engine, Severity, Verdict},
    simulate::{
        BEGIN, Layout, Simulation, host_name,
        scenario::{Class, Scenario, Truth},
    },
};

/// What is missing from what is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Gap {
    Nothing,
    /// Events lost, in thousandths.
    Lost(u32),
    /// A host without a part in the fault.
    OtherHost,
    /// The host on which the cause is.
    CulpritsHost,
    /// Nothing missing; ends of operations are seen besides.
    Completions,
}

impl Gap {
    pub(crate) fn label(self) -> String {
        match self {
            Self::Nothing => "nothing".to_owned(),
            Self::Lost(n) => format!("{} % of events", f64::from(n) / 10.0),
            Self::OtherHost => "another host".to_owned(),
            Self::CulpritsHost => "the culprit's host".to_owned(),
            Self::Completions => "nothing; ends of operations seen".to_owned(),
        }
    }

    /// As on the command line.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        match text {
            "none" => Some(Self::Nothing),
            "host" => Some(Self::OtherHost),
            "culprit" => Some(Self::CulpritsHost),
            "completions" => Some(Self::Completions),
            lost => lost.strip_suffix('%')?.parse::<u32>().ok().map(|n| Self::Lost(10 * n)),
        }
    }

    pub(crate) fn option(self) -> String {
        match self {
            Self::Nothing => "none".to_owned(),
            Self::Lost(n) => format!("{}%", n / 10),
            Self::OtherHost => "host".to_owned(),
            Self::CulpritsHost => "culprit".to_owned(),
            Self::Completions => "completions".to_owned(),
        }
    }
}

/// One run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub class: &'static Class,
    pub seed: u64,
    pub ranks: u32,
    pub gap: Gap,
}

impl Case {
    /// How to see it again.
    pub(crate) fn command(&self) -> String {
        format!(
            "score --class {} --seed {} --size {} --gap {} --trace",
            self.class.name,
            self.seed,
            self.ranks,
            self.gap.option()
        )
    }

    fn scenario(&self) -> Scenario {
        let mut scenario = self.class.scenario(self.seed, self.ranks);
        let layout = scenario.config.layout;
        let hosts = |ranks: &mut dyn Iterator<Item = &u32>| ranks.map(|r| layout.host(*r)).collect::<Vec<_>>();
        let guilty = hosts(&mut scenario.truth.culprits.iter().flatten());
        let near = hosts(&mut scenario.truth.allowed.iter());
        let seen = &mut scenario.config.seen;
        match self.gap {
            Gap::Nothing => {}
            Gap::Completions => seen.completions = true,
            Gap::Lost(n) => seen.loss = n,
            Gap::CulpritsHost => seen.missing_host = guilty.first().copied(),
            Gap::OtherHost => {
                let start = self.seed as u32 % layout.hosts();
                let mut others = (0..layout.hosts()).map(|h| (start + h) % layout.hosts());
                seen.missing_host = others.find(|h| !guilty.contains(h) && !near.contains(h));
            }
        }
        scenario
    }
}

/// What came of it.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub case: Case,
    /// All causes were named, with the right component.
    pub named: Option<Nanos>,
    /// The first verdict after the fault.
    pub detected: Option<Nanos>,
    /// Verdicts that accuse somebody, and those of them that accuse none but the guilty.
    pub accusations: usize,
    pub just: usize,
    /// Headlines of the others.
    pub wrong: Vec<String>,
    /// Something was found wrong in what is not.
    pub false_alarms: Vec<String>,
    pub insufficient: bool,
}

impl Outcome {
    pub(crate) fn right(&self) -> bool {
        self.named.is_some() && self.wrong.is_empty()
    }
}

pub(crate) fn run(case: Case, trace: &mut dyn FnMut(String)) -> Outcome {
    let scenario = case.scenario();
    let mut judge = Judge::new(case, scenario.truth.clone(), scenario.config.layout);
    let mut state = State::default();
    let mut engine = Engine::default();
    for event in Simulation::new(scenario.config) {
        state.apply(&event);
        if event.body == Body::Tick {
            let changes = engine.evaluate(&state);
            judge.take(&changes, &engine, event.ts, trace);
        }
    }
    judge.outcome
}

/// Holds verdicts against the truth.
struct Judge {
    truth: Truth,
    layout: Layout,
    outcome: Outcome,
}

impl Judge {
    fn new(case: Case, truth: Truth, layout: Layout) -> Self {
        let outcome = Outcome {
            case,
            named: None,
            detected: None,
            accusations: 0,
            just: 0,
            wrong: Vec::new(),
            false_alarms: Vec::new(),
            insufficient: false,
        };
        Self { truth, layout, outcome }
    }

    fn take(&mut self, changes: &[Change], engine: &Engine, now: Nanos, trace: &mut dyn FnMut(String)) {
        for change in changes {
            let (what, verdict) = match change {
                Change::Raised(v) => ("raised", v),
                Change::Updated(v) => ("updated", v),
                Change::Cleared(v) => ("cleared", v),
            };
            trace(self.told(what, verdict, now));
            if !matches!(change, Change::Cleared(_)) {
                self.verdict(verdict, now);
            }
        }
        if self.outcome.named.is_none() && self.all_named(engine) {
            self.outcome.named = Some(now.saturating_sub(self.truth.at));
        }
    }

    fn told(&self, what: &str, v: &Verdict, now: Nanos) -> String {
        format!(
            "{:8.2} s  {what:7} {} {} [{}] {}; culprits {:?}",
            (now - BEGIN) as f64 / 1e9,
            v.rule,
            v.name,
            v.severity.label(),
            v.headline,
            self.ranks(v)
        )
    }

    fn ranks(&self, v: &Verdict) -> Vec<u32> {
        let of = |host: &str, pid| {
            let host = (0..self.layout.hosts()).find(|h| host_name(*h) == host)?;
            Simulation::rank_of(&self.layout, HostId(host), pid)
        };
        v.culprits.iter().filter_map(|c| of(&c.host, c.pid)).collect()
    }

    fn verdict(&mut self, v: &Verdict, now: Nanos) {
        let culprits = self.ranks(v);
        if v.severity == Severity::Info {
            return;
        }
        self.outcome.insufficient |= v.rule == "MYC020";
        if self.truth.rules.is_empty() || now < self.truth.at {
            self.outcome.false_alarms.push(format!("{} {}", v.rule, v.headline));
        } else if self.outcome.detected.is_none() {
            self.outcome.detected = Some(now - self.truth.at);
        }
        if !culprits.is_empty() {
            self.outcome.accusations += 1;
            if culprits.iter().any(|r| now < self.truth.at || self.truth.is_innocent(*r)) {
                self.outcome.wrong.push(format!("{} {}", v.rule, v.headline));
            } else {
                self.outcome.just += 1;
            }
        }
    }

    fn names_component(&self, v: &Verdict) -> bool {
        self.truth.rules.iter().any(|r| *r == v.rule || v.name.contains(r))
    }

    fn all_named(&self, engine: &Engine) -> bool {
        let mut found = false;
        let mut named = Vec::new();
        for v in engine.active().into_iter().filter(|v| self.names_component(v)) {
            found = true;
            named.extend(self.ranks(v));
        }
        let whole = |cause: &Vec<u32>| {
            let mut ranks = cause.iter();
            if self.truth.exact { ranks.all(|r| named.contains(r)) } else { ranks.any(|r| named.contains(r)) }
        };
        found && self.truth.culprits.iter().all(whole)
    }
}
