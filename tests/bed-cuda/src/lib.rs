//! Test bed: stand-in for cuda.
