//! The least of an HTTP client, and reading Prometheus' text format.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use anyhow::{Context as _, Result};

/// Status and body.
pub(crate) fn get(server: SocketAddr, path: &str) -> Result<(u16, String)> {
    let mut stream = TcpStream::connect(server)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {server}\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("no HTTP answer")?;
    let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).context("no status in an HTTP answer")?;
    Ok((status, body.to_owned()))
}

/// Sum of a counter's series that carry `label`.
pub(crate) fn counter(metrics: &str, name: &str, label: &str) -> u64 {
    let series = metrics.lines().filter(|l| l.strip_prefix(name).is_some_and(|r| r.starts_with(['{', ' '])));
    series.filter(|l| l.contains(label)).filter_map(|l| l.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_are_told_apart() {
        let text = "# TYPE a_total counter\na_total{stage=\"x\"} 3\na_total{stage=\"y\"} 4\na_total_more 9\nb 1\n";
        assert_eq!(counter(text, "a_total", "\"x\""), 3);
        assert_eq!(counter(text, "a_total", ""), 7);
        assert_eq!(counter(text, "c", ""), 0);
    }
}
