//! Where it was measured.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread::available_parallelism;
use std::time::SystemTime;

use invigil_schema::Timestamp;

use crate::Result;

/// A list for the page. `peers` are those who are compared, with their versions.
pub(super) fn describe(scratch: &Path, peers: &[(&str, String)]) -> Result<String> {
    let now = Timestamp::from(SystemTime::now()).to_string();
    let date = now.split('T').next().unwrap_or_default();
    let rustc = Command::new("rustc").arg("--version").output()?;
    let rustc = String::from_utf8_lossy(&rustc.stdout);
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or_default();
    let peers = peers
        .iter()
        .map(|(name, version)| format!("- {name}: {version}\n"));
    Ok(format!(
        "- date: {date}\n\
         - processor: {}, {} cores; load when it began: {load}\n\
         - kernel: {}\n\
         - filesystem: {}\n\
         - compiler: {}\n\
         {}",
        processor(),
        available_parallelism()?,
        fs::read_to_string("/proc/sys/kernel/osrelease")
            .unwrap_or_default()
            .trim(),
        filesystem(scratch),
        rustc.trim(),
        peers.collect::<String>(),
    ))
}

fn processor() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info
        .lines()
        .find_map(|line| line.strip_prefix("model name"));
    let model = model
        .unwrap_or("unknown")
        .trim_start_matches(['\t', ' ', ':']);
    let sha = if info.contains("sha_ni") {
        "with"
    } else {
        "without"
    };
    format!("{model} ({sha} SHA instructions)")
}

/// The type and the device of the mount that a folder is in.
fn filesystem(folder: &Path) -> String {
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    let fields = mounts
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>());
    let holding = fields.filter(|mount| mount.len() > 2 && folder.starts_with(mount[1]));
    let mount = holding.max_by_key(|mount| mount[1].len());
    mount.map_or("unknown".into(), |mount| {
        format!("{} on {}", mount[2], mount[0])
    })
}
