//! `invigil run` inside of a run: the supervisor of that run is asked to start the new one on its behalf.

use std::env;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use invigil_engine::{ChildNews, ChildSpec, End, RunSpec, ask_for_run};
use invigil_journal::Store;
use invigil_schema::{OsText, PolicyPlaces, RunId};

use crate::error::CliError;
use crate::policies::{PolicyOptions, places};

/// A run that was started inside of another one.
pub(crate) struct Nested {
    pub(crate) run_id: RunId,
    pub(crate) end: End,
}

/// Has a run started by the supervisor of the one that we are in, and waits for its end. Nothing, if we are in none, or in
/// one that has another store.
pub(crate) fn run(
    store: &Store,
    spec: &RunSpec,
    policy: &PolicyOptions,
) -> Result<Option<Nested>, CliError> {
    let (Ok(run_id), Some(channel)) = (env::var("INVIGIL_RUN_ID"), env::var_os("INVIGIL_EVENTS"))
    else {
        return Ok(None);
    };
    // What names a run that is over, or a file, is of no use.
    let Ok(mut stream) = UnixStream::connect(channel) else {
        return Ok(None);
    };
    let cwd = env::current_dir().map_err(CliError::NoCwd)?;
    let cwd = spec
        .cwd
        .as_ref()
        .map_or_else(|| cwd.clone(), |dir| cwd.join(dir));
    let text = |path: PathBuf| OsText::from(path.into_os_string());
    // The supervisor has the user's own file in mind already, and we may not even read it.
    let (mode, sources) = policy.named()?;
    let places = places(&cwd);
    let child = ChildSpec {
        home: text(store.home().to_owned()),
        command: spec.command.iter().cloned().map(OsText::from).collect(),
        cwd: text(cwd),
        run_id: spec.run_id.clone(),
        agent_shim: spec.agent_shim.clone(),
        timeout_ms: spec.timeout.map(|timeout| timeout.as_millis() as u64),
        reads: spec.reads,
        mode,
        policy: sources
            .into_iter()
            .map(|source| (source.name, source.text))
            .collect(),
        places: PolicyPlaces {
            home: text(places.home),
            workspace: text(places.workspace),
            tmp: text(places.tmp),
            path: places.path.into_iter().map(text).collect(),
        },
    };
    let line = ask_for_run(&run_id, &child).map_err(CliError::NotJson)?;
    let Ok(()) = stream.write_all(&line) else {
        return Ok(None);
    };
    let mut started = None;
    for line in BufReader::new(stream).lines() {
        let gone = || CliError::Nested("its supervisor is gone".to_owned());
        let line = line.map_err(|_| gone())?;
        let news: ChildNews = serde_json::from_str(&line).map_err(|_| CliError::Nested(line))?;
        let end = match news {
            ChildNews::Elsewhere => return Ok(None),
            ChildNews::Error(why) => return Err(CliError::Nested(why)),
            ChildNews::Started { run_id } => {
                started = Some(run_id);
                continue;
            }
            ChildNews::Finished(finished) => End::Finished(finished),
            ChildNews::Failed(failed) => End::NotStarted(failed),
        };
        let run_id = started.ok_or_else(gone)?;
        return Ok(Some(Nested { run_id, end }));
    }
    Err(CliError::Nested("its supervisor has ended".to_owned()))
}
