//! Shared by the tests under `tests/tests` and the benchmark: the load library, the built programs, a tracer
//! inside the test.

pub mod agent;
pub mod load;
pub mod programs;
pub mod traced;
