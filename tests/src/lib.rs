//! Shared helpers of the tests under `tests/tests`.
