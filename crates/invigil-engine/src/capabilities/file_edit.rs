//! `file_edit`: one text in a file replaced by another, with the difference as the result.

use std::io::Read;
use std::time::Duration;

use invigil_schema::OsText;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;
use similar::TextDiff;

use super::change::{self, Change, Content, as_path};
use super::entry::{digest_of, look};
use super::file_write::rewritten;
use super::{Capability, Context, Failure, Invalid, Needs, Output, Plan, arguments};

/// Larger files are not edited as text.
const MAX_BYTES: u64 = 10 << 20;
/// After this time the difference is a coarse one.
const DIFF_TIME: Duration = Duration::from_secs(2);

/// Edits text files.
pub(super) struct FileEdit;

/// Arguments of `file_edit`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Args {
    /// The file; relative to the working directory, or absolute below an allowed root.
    path: OsText,
    /// The text to replace, word for word.
    old: String,
    /// What comes in its place.
    new: String,
    /// How often `old` must occur; all of them are replaced.
    #[serde(default = "once")]
    #[schemars(range(min = 1))]
    expect_count: usize,
}

fn once() -> usize {
    1
}

impl Capability for FileEdit {
    type Args = Args;
    const NAME: &'static str = "file_edit";
    const DESCRIPTION: &'static str = "Replaces a text in a file, which must occur as often as expected: once, if nothing is said.";

    fn validate(&self, args: &Args) -> Result<(), Invalid> {
        arguments::path("path", &args.path)?;
        if args.old.is_empty() {
            return Err(Invalid::new("old", "it is empty"));
        }
        if args.old == args.new {
            return Err(Invalid::new("new", "it is the same as `old`"));
        }
        arguments::in_range("expect_count", args.expect_count, 1, usize::MAX)
    }

    fn plan(&self, _: &Args) -> Plan {
        Plan::Work(Needs::WRITES)
    }

    fn execute(&self, args: Args, context: &mut Context<'_>) -> Result<Output, Failure> {
        let place = context.roots.follow(as_path(&args.path))?;
        let path = place.path.display();
        let found = look(&place.dir, &place.name).map_err(|e| Failure::io(path.to_string(), e))?;
        let Some(mut file) = found.file else {
            return Err(Failure::new(format!("{path}: there is no such file")));
        };
        let text = read_text(&mut file).map_err(|why| Failure::new(format!("{path}: {why}")))?;
        if found.entry.sha256() != Some(&digest_of(text.as_bytes())) {
            return Err(change::conflict(
                &place.path,
                "it changed while it was read",
            ));
        }
        let count = text.matches(&args.old).count();
        if count != args.expect_count {
            return Err(Failure::new(format!(
                "{path}: `old` occurs {count} times, expected were {}",
                args.expect_count
            )));
        }
        let edited = text.replace(&args.old, &args.new);
        let sha256 = digest_of(edited.as_bytes());
        let after = rewritten(&found.entry, sha256, edited.len() as u64)
            .ok_or_else(|| Failure::new(format!("{path}: it is not a regular file")))?;
        let output = Output::new(json!({
            "path": OsText::from(place.path.as_os_str()),
            "replacements": count,
            "diff": unified(&as_path(&args.path).to_string_lossy(), &text, &edited),
            "backup": found.entry.sha256(),
            "sha256_before": found.entry.sha256(),
            "sha256_after": sha256,
        }));
        if !context.dry_run {
            let content = Content::Bytes(edited.into_bytes());
            let change = Change::new(&place.path, found.entry, after, content);
            change::make(vec![change], context)?;
        }
        Ok(output)
    }
}

fn read_text(file: &mut dyn Read) -> Result<String, String> {
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| error.to_string())?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(format!("it has more than {MAX_BYTES} bytes"));
    }
    String::from_utf8(bytes)
        .map_err(|_| "it is not UTF-8 text; read it and write it as base64".to_owned())
}

/// The difference as `diff -u` shows it.
pub(super) fn unified(name: &str, old: &str, new: &str) -> String {
    TextDiff::configure()
        .timeout(DIFF_TIME)
        .diff_lines(old, new)
        .unified_diff()
        .header(&format!("a/{name}"), &format!("b/{name}"))
        .to_string()
}
