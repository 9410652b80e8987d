//! Who sees to it that a policy holds, on this machine and in this tier.

use invigil_policy::Bounds;
use invigil_sandbox::probe::Report;
use invigil_schema::{Enforced, ObserverStarted, PolicyEnforced, Strength, Tier};

/// What a run has to enforce a policy with.
struct Means {
    tier: Tier,
    /// Calls on sockets can be made on behalf.
    sockets: bool,
    landlock: Option<u32>,
}

/// From here on Landlock knows TCP ports.
const LANDLOCK_WITH_PORTS: u32 = 4;

/// What the evidence says.
pub(crate) fn enforced(bounds: &Bounds, started: &ObserverStarted) -> PolicyEnforced {
    let hook = |name| {
        let mut hooks = started.hooks.iter();
        hooks.any(|hook| hook.name == name && hook.attached)
    };
    let means = Means {
        tier: started.tier,
        sockets: hook("exact_network"),
        landlock: started.landlock_abi,
    };
    PolicyEnforced {
        parts: parts(bounds, &means),
    }
}

/// What the strict mode would miss on this machine; empty if nothing.
pub(crate) fn missing(bounds: &Bounds, report: &Report) -> Vec<String> {
    let means = Means {
        tier: report.tier,
        sockets: report.works("pidfd_getfd"),
        landlock: report.landlock_abi,
    };
    let mut missing: Vec<String> = parts(bounds, &means)
        .into_iter()
        .filter(|part| part.strength < Strength::Full)
        .map(|part| format!("{}: {}", part.part, part.by))
        .collect();
    let rooted = [&bounds.read_roots, &bounds.write_roots];
    let rooted = rooted.iter().any(|roots| roots.is_some()) || bounds.exec_roots.is_some();
    if rooted && means.landlock.is_none() {
        missing.push("the kernel has no Landlock, or does not let it be used".to_owned());
    }
    if bounds.ports.is_some() && means.landlock.is_none_or(|abi| abi < LANDLOCK_WITH_PORTS) {
        missing.push("Landlock does not know TCP ports here (needs Linux 6.7)".to_owned());
    }
    missing
}

/// What a person should know before they rely on the policy.
pub(crate) fn warnings(enforced: &PolicyEnforced) -> Vec<String> {
    let weak = enforced
        .parts
        .iter()
        .filter(|part| part.strength < Strength::Full);
    let warning = |part: &Enforced| match part.strength {
        Strength::None => format!("the policy's {} is not enforced: {}", part.part, part.by),
        _ => format!("the policy's {} can be got around: {}", part.part, part.by),
    };
    weak.map(warning).collect()
}

fn parts(bounds: &Bounds, means: &Means) -> Vec<Enforced> {
    let part = |part: &str, (strength, by): (Strength, String)| Enforced {
        part: part.to_owned(),
        strength,
        by,
    };
    let floor = match means.landlock {
        Some(abi) => format!(", over Landlock {abi}"),
        None => String::new(),
    };
    let by_tier = |notify: &str| match means.tier {
        Tier::Notify => (Strength::Full, format!("{notify}{floor}")),
        Tier::Ptrace => (
            Strength::Advisory,
            "in the ptrace tier a second thread can change what was judged".to_owned(),
        ),
        Tier::ContractOnly => (
            Strength::None,
            "the contract_only tier sees nothing".to_owned(),
        ),
    };
    let by_socket = || match means.tier {
        Tier::Notify if !means.sockets => (
            Strength::Advisory,
            "pidfd_getfd is refused here, so that addresses can be changed after they were judged"
                .to_owned(),
        ),
        _ => by_tier("carried out on behalf"),
    };
    let mut parts = vec![part("files.write", by_tier("carried out on behalf"))];
    if bounds.reads {
        parts.push(part("files.read", by_tier("carried out on behalf")));
    }
    if bounds.execs {
        parts.push(part("programs", by_tier("judged again when loaded")));
    }
    if bounds.network {
        parts.push(part("network", by_socket()));
    }
    if bounds.unix {
        parts.push(part("network.unix", by_socket()));
    }
    if bounds.names {
        let by = match means.tier {
            Tier::Notify if means.sockets => (
                Strength::Full,
                "each name has addresses of its own in the run".to_owned(),
            ),
            _ => (
                Strength::Advisory,
                "names are not looked up for the run here; only addresses decide".to_owned(),
            ),
        };
        parts.push(part("network.names", by));
    }
    parts
}
