//! `/metrics`, `/healthz`, `/readyz`, `/api/v1/state`.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use axum::{
    Json, Router,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use prometheus_client::registry::Registry;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;

use crate::report::{
    json::{CommRecord, ProcessRecord, SCHEMA_VERSION, VerdictRecord},
    metrics::{Form, Shared, registry, render},
};

/// A loop that has not been round for this long is taken for dead.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// What `/api/v1/state` returns.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ApiState {
    pub schema_version: u32,
    pub hostname: String,
    /// Seconds for which the agent has been attached.
    pub uptime_seconds: f64,
    pub verdicts: Vec<VerdictRecord>,
    pub communicators: Vec<CommRecord>,
    pub processes: Vec<ProcessRecord>,
    pub events_lost: u64,
    /// Who waits for whom, as DOT; empty while nothing is found.
    #[serde(default)]
    pub waits_dot: String,
}

#[derive(Debug)]
struct Published {
    api: ApiState,
    beat: Instant,
    /// `Err` says why it is not ready.
    ready: Result<(), String>,
}

/// What the loop leaves for the server.
#[derive(Clone, Debug)]
pub struct Served {
    published: Arc<Mutex<Published>>,
    pub metrics: Shared,
}

impl Default for Served {
    fn default() -> Self {
        let published =
            Published { api: ApiState::default(), beat: Instant::now(), ready: Err("not attached yet".to_owned()) };
        Self { published: Arc::new(Mutex::new(published)), metrics: Shared::default() }
    }
}

impl Served {
    /// Replaces what is served.
    pub fn publish(&self, api: ApiState, ready: Result<(), String>) {
        let api = ApiState { schema_version: SCHEMA_VERSION, ..api };
        *self.lock() = Published { api, beat: Instant::now(), ready };
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Published> {
        self.published.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Clone)]
struct Context {
    served: Served,
    registry: Arc<Registry>,
}

/// Serves until the runtime ends.
///
/// # Errors
/// If the listener fails.
pub async fn serve(listener: TcpListener, served: Served, hostname: &str) -> std::io::Result<()> {
    let registry = Arc::new(registry(&served.metrics, hostname));
    let app = Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/api/v1/state", get(state))
        .with_state(Context { served, registry });
    axum::serve(listener, app).await
}

async fn metrics(State(cx): State<Context>, headers: HeaderMap) -> Response {
    let accept = headers.get(header::ACCEPT).and_then(|v| v.to_str().ok()).unwrap_or("");
    let form = Form::accepted(accept);
    match render(&cx.registry, form) {
        Ok(text) => ([(header::CONTENT_TYPE, form.content_type())], text).into_response(),
        Err(e) => (StatusCode::INTERNAL_SERVER_ERROR, e.to_string()).into_response(),
    }
}

async fn healthz(State(cx): State<Context>) -> Response {
    let age = cx.served.lock().beat.elapsed();
    if age < HEARTBEAT {
        return "ok\n".into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, format!("the agent's loop has been stuck for {} s\n", age.as_secs()))
        .into_response()
}

async fn readyz(State(cx): State<Context>) -> Response {
    match &cx.served.lock().ready {
        Ok(()) => "ready\n".into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response(),
    }
}

async fn state(State(cx): State<Context>) -> Json<ApiState> {
    Json(cx.served.lock().api.clone())
}
