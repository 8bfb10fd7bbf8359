//! Test bed: stand-in for nvml.
