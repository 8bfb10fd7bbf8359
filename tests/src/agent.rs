//! The real agent as a process, and what it answers.

use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
    process::{Child, Command},
    time::{Duration, Instant},
};

use mycroft_agent::serve::http::ApiState;

use crate::programs::built;

/// A port that nobody listens on now.
///
/// # Panics
/// Without a loopback interface.
#[must_use]
pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a loopback interface").port()
}

/// `GET` of a server on this host: status and body; `None` if nobody answers.
#[must_use]
pub fn get(port: u16, path: &str, accept: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nAccept: {accept}\r\nConnection: close\r\n\r\n").ok()?;
    let mut all = String::new();
    stream.read_to_string(&mut all).ok()?;
    let (head, body) = all.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
}

/// A running agent; killed when dropped.
#[derive(Debug)]
pub struct Agent {
    child: Child,
    pub port: u16,
}

impl Agent {
    /// Starts one and waits until it is ready.
    ///
    /// # Panics
    /// If it does not become ready.
    #[must_use]
    pub fn start(options: &[&str]) -> Self {
        let port = free_port();
        let child = Command::new(built("mycroft"))
            .args(["agent", "--listen", &format!("127.0.0.1:{port}")])
            .args(options)
            .env("MYCROFT_LOG", "off")
            .env("MYCROFT_CACHE_DIR", std::env::temp_dir().join("mycroft-test-layouts"))
            .spawn()
            .expect("the agent starts");
        let agent = Self { child, port };
        agent.until("/readyz", |status, _| status == 200);
        agent
    }

    #[must_use]
    pub fn get(&self, path: &str, accept: &str) -> Option<(u16, String)> {
        get(self.port, path, accept)
    }

    /// Asks again and again until the answer is as wanted.
    ///
    /// # Panics
    /// If it is not within 20 s.
    pub fn until(&self, path: &str, done: impl Fn(u16, &str) -> bool) {
        let end = Instant::now() + Duration::from_secs(20);
        loop {
            let answer = self.get(path, "*/*");
            if answer.as_ref().is_some_and(|(status, body)| done(*status, body)) {
                return;
            }
            assert!(Instant::now() < end, "{path}: {answer:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// # Panics
    /// If it does not answer.
    #[must_use]
    pub fn state(&self) -> ApiState {
        let (_, body) = self.get("/api/v1/state", "*/*").expect("the agent answers");
        serde_json::from_str(&body).expect("its own schema")
    }

    /// Kills it as the kernel would.
    pub fn kill(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.kill();
    }
}
