//! A process outside of the run, with the same user, that must not notice anything.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};

/// Sleeps, in the world, with the secret as its standard input.
pub(crate) struct Victim {
    child: Child,
    before: Vec<String>,
}

impl Victim {
    pub(crate) fn start(mut sleep: Command, world: &Path) -> Victim {
        let secret = File::open(world.join("secret/key")).unwrap();
        sleep.arg("1000").current_dir(world);
        let child = sleep.stdin(secret).process_group(0).spawn().unwrap();
        let mut victim = Victim {
            child,
            before: Vec::new(),
        };
        // `setpriv` is over when the name is the sleeper's.
        while victim.look().first().is_none_or(|name| name != "sleep S") {
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        victim.before = victim.look();
        victim
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// What was done to it.
    pub(crate) fn harm(&self) -> Vec<String> {
        let now = self.look();
        if now.is_empty() {
            return vec!["the victim is gone".into()];
        }
        let changed = self.before.iter().zip(&now);
        changed
            .filter(|(before, now)| before != now)
            .map(|(before, now)| format!("the victim was {before:?} and is {now:?}"))
            .collect()
    }

    /// What others could change: name and state, group, priority, class, limits, processors, tracer, cgroup.
    fn look(&self) -> Vec<String> {
        let read = |name: &str| {
            let path = format!("/proc/{}/{name}", self.child.id());
            fs::read_to_string(path).unwrap_or_default()
        };
        let stat = read("stat");
        let Some((name, rest)) = stat.rsplit_once(") ") else {
            return Vec::new();
        };
        let name = name.split_once('(').map_or("", |(_, name)| name);
        let fields: Vec<&str> = rest.split(' ').collect();
        if fields[0] == "Z" {
            return Vec::new();
        }
        let mut seen = vec![format!("{name} {}", fields[0])];
        // Counted from the state, which is the third field of the file.
        seen.extend([2, 16, 37, 38].map(|field| fields[field].to_owned()));
        seen.extend(["limits", "oom_score_adj", "cgroup"].map(read));
        let status = read("status");
        let kept = ["TracerPid", "Cpus_allowed", "SigPnd", "ShdPnd"];
        let lines = status.lines();
        seen.extend(
            lines
                .filter(|line| kept.iter().any(|kept| line.starts_with(kept)))
                .map(str::to_owned),
        );
        seen
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
