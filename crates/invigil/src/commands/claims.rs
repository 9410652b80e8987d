//! `invigil claims`: what an agent said of its work, beside what was seen of it.

use std::io::{self, Write};
use std::path::PathBuf;

use invigil_audit::{Claimed, ClaimsDoc, Finding, JudgedClaim, ToolDid};
use invigil_journal::Store;
use invigil_schema::ExitCode;

use super::find;
use crate::error::CliError;
use crate::executor::text_of;
use crate::ui::{self, BAD, BOLD, DIM, GOOD, WARN};

/// Compare what an agent said with what was seen
///
/// Takes what the agent's framework reported, and texts such as its last message. Each claim that is understood is
/// supported or contradicted by the records that are named, or unsupported where they say neither.
///
/// Exit code 0: nothing is contradicted. 1: something is.
#[derive(Debug, clap::Args)]
pub(crate) struct Claims {
    /// A run's id, the beginning of one, `last`, or a path to a copy of a run directory
    run: String,

    /// A text that the agent has written about its work; may be repeated
    #[arg(long, value_name = "FILE")]
    said: Vec<PathBuf>,

    /// One JSON object on stdout
    #[arg(long)]
    json: bool,
}

impl Claims {
    pub(crate) fn execute(self, store: &Store) -> Result<u8, CliError> {
        let run = find(store, &self.run)?;
        let said: Result<Vec<(String, String)>, CliError> = self
            .said
            .iter()
            .map(|path| Ok((path.display().to_string(), text_of(path)?)))
            .collect();
        let claims = invigil_engine::claims(&run, &said?)?;
        let mut out = anstream::stdout().lock();
        match self.json {
            true => writeln!(out, "{}", serde_json::json!(claims))?,
            false => print(&mut out, &claims)?,
        }
        Ok(match claims.contradicted {
            0 => 0,
            _ => ExitCode::No.into(),
        })
    }
}

fn print(out: &mut impl Write, claims: &ClaimsDoc) -> io::Result<()> {
    if claims.claims.is_empty() {
        writeln!(
            out,
            "{DIM}nothing was said that could be compared with what was seen{DIM:#}"
        )?;
    }
    for claim in &claims.claims {
        line(out, claim)?;
    }
    if claims.left_out > 0 {
        writeln!(out, "{DIM}and {} more{DIM:#}", claims.left_out)?;
    }
    let (supported, contradicted, unsupported) =
        (claims.supported, claims.contradicted, claims.unsupported);
    writeln!(
        out,
        "{BOLD}{supported}{BOLD:#} supported, {BOLD}{contradicted}{BOLD:#} contradicted, {BOLD}{unsupported}{BOLD:#} unsupported"
    )
}

fn line(out: &mut impl Write, claim: &JudgedClaim) -> io::Result<()> {
    let style = match claim.finding {
        Finding::Supported => GOOD,
        Finding::Contradicted => BAD,
        Finding::Unsupported => WARN,
    };
    let finding = claim.finding.as_str();
    let place = match (&claim.said.seq, &claim.said.file) {
        (Some(seq), _) => format!("record {seq}"),
        (None, Some(file)) => format!("{}:{}", ui::harmless(file), claim.said.line),
        (None, None) => format!("line {}", claim.said.line),
    };
    let said = ui::harmless(&claim.said.text);
    writeln!(
        out,
        "{style}{finding:12}{style:#}  “{said}” {DIM}({place}){DIM:#}"
    )?;
    let mut events: Vec<String> = claim.events.iter().map(u64::to_string).collect();
    if claim.more_events > 0 {
        events.push(format!("and {} more", claim.more_events));
    }
    let records = match events.is_empty() {
        true => String::new(),
        false => format!(" {DIM}(records {}){DIM:#}", events.join(", ")),
    };
    let (what, because) = (
        ui::harmless(&claimed(&claim.claim)),
        ui::harmless(&claim.because),
    );
    writeln!(out, "              {what}: {because}{records}")
}

/// What is claimed, in a few words.
pub(crate) fn claimed(claim: &Claimed) -> String {
    match claim {
        Claimed::TestsPass => "tests pass".to_owned(),
        Claimed::Ran { command } => format!("ran {command}"),
        Claimed::Created { path } => format!("made {path}"),
        Claimed::Changed { path } => format!("changed {path}"),
        Claimed::Deleted { path } => format!("removed {path}"),
        Claimed::Untouched { path } => format!("left {path} alone"),
        Claimed::OnlyTouched { paths } => format!("changed nothing but {}", paths.join(", ")),
        Claimed::NoNetwork => "no network".to_owned(),
        Claimed::ToolResult { did, .. } => match did {
            ToolDid::Command {
                exit_code: Some(code),
                ..
            } => format!("a command that exited with {code}"),
            ToolDid::Command { ok: Some(true), .. } => "a command that went well".to_owned(),
            ToolDid::Command {
                ok: Some(false), ..
            } => "a command that went wrong".to_owned(),
            ToolDid::Command { .. } => "a command".to_owned(),
            ToolDid::Write {
                ok: Some(false), ..
            } => "a change that went wrong".to_owned(),
            ToolDid::Write { .. } => "a change".to_owned(),
        },
    }
}
