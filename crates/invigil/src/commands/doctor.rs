//! `invigil doctor`: what works on this machine, found out by doing it.

use std::io::Write as _;

use invigil_sandbox::probe::{Report, probe_all};
use invigil_schema::{ExitCode, Tier};
use serde_json::json;

use crate::error::CliError;
use crate::ui::{self, BAD, BOLD, DIM, GOOD, WARN};

/// Show what can be watched on this machine, and in which tier a run would be
///
/// Exit code 1 if nothing but the beginning and the end of a run could be seen.
#[derive(Debug, clap::Args)]
pub(crate) struct Doctor {
    /// One JSON object on stdout
    #[arg(long)]
    json: bool,
}

impl Doctor {
    pub(crate) fn execute(self) -> Result<u8, CliError> {
        let report = probe_all();
        match self.json {
            true => writeln!(std::io::stdout(), "{}", as_json(&report))?,
            false => print(&report)?,
        }
        Ok(match report.tier {
            Tier::ContractOnly => ExitCode::No.into(),
            Tier::Ptrace | Tier::Notify => 0,
        })
    }
}

fn as_json(report: &Report) -> serde_json::Value {
    let probes: Vec<_> = report
        .probes
        .iter()
        .map(|probe| {
            json!({
                "name": probe.name,
                "works": probe.works,
                "for": probe.for_what,
                "problem": probe.problem,
            })
        })
        .collect();
    json!({
        "kernel": report.kernel,
        "tier": report.tier,
        "landlock_abi": report.landlock_abi,
        "probes": probes,
    })
}

fn print(report: &Report) -> Result<(), CliError> {
    let mut out = anstream::stdout().lock();
    let style = match report.tier {
        Tier::Notify => GOOD,
        Tier::Ptrace => WARN,
        Tier::ContractOnly => BAD,
    };
    writeln!(out, "{BOLD}kernel{BOLD:#} {}", ui::harmless(&report.kernel))?;
    writeln!(
        out,
        "{BOLD}tier{BOLD:#}   {style}{}{style:#}",
        report.tier.as_str()
    )?;
    let width = report
        .probes
        .iter()
        .map(|probe| probe.name.len())
        .max()
        .unwrap_or(0);
    for probe in &report.probes {
        let (mark, style) = if probe.works {
            ("works", GOOD)
        } else {
            ("no   ", WARN)
        };
        write!(
            out,
            "{style}{mark}{style:#}  {:width$}  {DIM}{}{DIM:#}",
            probe.name, probe.for_what
        )?;
        match &probe.problem {
            Some(problem) => writeln!(out, "  {}", ui::harmless(problem))?,
            None => writeln!(out)?,
        }
    }
    Ok(())
}
