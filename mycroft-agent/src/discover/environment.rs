//! What launchers tell a process of its place in the job, from its environment.
//!
//! Only the variables named here are looked at and nothing else of the environment is kept: it may hold secrets.

use std::{fs::File, io::Read as _, path::Path};

/// Variables that hold the process's rank in the whole job, by launcher: torchrun, Open MPI, MPICH and Slurm. A
/// torchrun that Slurm started sets both, and then its own is right.
const RANK: [&str; 4] = ["RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"];
/// No environment is larger: the kernel's own limit on arguments is 6 MB.
const MOST: u64 = 8 << 20;

/// The process's rank in its job; `None` if no launcher told, or the process is gone.
#[must_use]
pub fn job_rank(proc_root: &Path, pid: u32) -> Option<u32> {
    let mut bytes = Vec::new();
    let file = File::open(proc_root.join(pid.to_string()).join("environ")).ok()?;
    file.take(MOST).read_to_end(&mut bytes).ok()?;
    rank_in(&bytes)
}

fn rank_in(environ: &[u8]) -> Option<u32> {
    let value = |name: &str| {
        let mut entries = environ.split(|b| *b == 0);
        let entry = entries.find_map(|e| e.strip_prefix(name.as_bytes())?.strip_prefix(b"="))?;
        std::str::from_utf8(entry).ok()?.parse().ok()
    };
    RANK.iter().find_map(|name| value(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_launcher_nearest_to_the_program_wins() {
        assert_eq!(rank_in(b"SLURM_PROCID=3\0RANK=12\0HOME=/\0"), Some(12));
        assert_eq!(rank_in(b"SLURM_PROCID=3\0LOCAL_RANK=1\0XRANK=9\0"), Some(3));
        assert_eq!(rank_in(b"RANK=twelve\0PMI_RANK=5"), Some(5));
        assert_eq!(rank_in(b"RANK=\xff\0"), None);
        assert_eq!(rank_in(b""), None);
    }
}
