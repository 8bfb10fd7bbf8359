//! What a collector read about a suspect's process.

use serde::{Deserialize, Serialize};

/// One finding of a collector; a newer one of the same kind replaces it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fact {
    /// What the thread that last called NCCL waits on, by the descriptor its system call names.
    Blocked(Blocked),
    /// Where the threads of its Python interpreter are.
    Python(Vec<PythonThread>),
}

/// A descriptor in use by a system call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blocked {
    pub tid: u32,
    /// The target of the descriptor, such as a path, `pipe:[1]` or `socket:[1]`.
    pub target: String,
}

/// A thread of a Python interpreter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PythonThread {
    pub tid: Option<u32>,
    pub name: Option<String>,
    pub holds_gil: bool,
    /// Innermost first, such as `load_batch (train.py:88)`.
    pub frames: Vec<String>,
}
