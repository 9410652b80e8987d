//! `file_read`: a part of a file, as text if it is text.

use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use invigil_schema::OsText;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::change::as_path;
use super::{Capability, Context, Failure, Invalid, Needs, Output, Plan, arguments, entry};

const DEFAULT_BYTES: u64 = 1 << 20;
const MAX_BYTES: u64 = 10 << 20;

/// Reads files.
pub(super) struct FileRead;

/// Arguments of `file_read`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Args {
    /// The file; relative to the working directory, or absolute below an allowed root.
    path: OsText,
    /// How many bytes at most.
    #[serde(default = "default_bytes")]
    #[schemars(range(min = 1, max = 10_485_760))]
    max_bytes: u64,
    /// Where to begin, in bytes.
    #[serde(default)]
    offset: u64,
}

fn default_bytes() -> u64 {
    DEFAULT_BYTES
}

impl Capability for FileRead {
    type Args = Args;
    const NAME: &'static str = "file_read";
    const DESCRIPTION: &'static str = "Reads a file, or a part of it.";

    fn validate(&self, args: &Args) -> Result<(), Invalid> {
        arguments::path("path", &args.path)?;
        arguments::in_range("max_bytes", args.max_bytes, 1, MAX_BYTES)?;
        arguments::in_range("offset", args.offset, 0, i64::MAX as u64)
    }

    fn plan(&self, _: &Args) -> Plan {
        Plan::Work(Needs::READS)
    }

    fn execute(&self, args: Args, context: &mut Context<'_>) -> Result<Output, Failure> {
        let place = context.roots.follow(as_path(&args.path))?;
        let failed = |error| Failure::io(place.path.display(), error);
        let mut file = entry::open_regular(&place.dir, &place.name).map_err(failed)?;
        let size = file.metadata().map_err(failed)?.len();
        file.seek(SeekFrom::Start(args.offset)).map_err(failed)?;
        let mut bytes = Vec::new();
        // One byte more says whether there is more; some files of the kernel do not tell their size.
        file.take(args.max_bytes + 1)
            .read_to_end(&mut bytes)
            .map_err(failed)?;
        let truncated = bytes.len() as u64 > args.max_bytes;
        bytes.truncate(args.max_bytes as usize);
        if truncated {
            bytes.truncate(whole_characters(&bytes));
        }
        let content_type = content_type(&place.path, &bytes);
        let sha256 = entry::digest_of(&bytes);
        let bytes_read = bytes.len();
        let (content, encoding) = match String::from_utf8(bytes) {
            Ok(text) => (text, "utf-8"),
            Err(error) => (STANDARD.encode(error.as_bytes()), "base64"),
        };
        Ok(Output::new(json!({
            "content": content,
            "encoding": encoding,
            "bytes_read": bytes_read,
            "size": size,
            "truncated": truncated,
            "content_type": content_type,
            "sha256": sha256,
        })))
    }
}

/// The length without a character that was cut in two, if what comes before it is text.
fn whole_characters(bytes: &[u8]) -> usize {
    match str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() && error.valid_up_to() > 0 => error.valid_up_to(),
        _ => bytes.len(),
    }
}

/// A guess, of the first bytes and then of the name.
fn content_type(path: &Path, bytes: &[u8]) -> &'static str {
    const MAGIC: [(&[u8], &str); 9] = [
        (b"\x89PNG\r\n\x1a\n", "image/png"),
        (b"\xff\xd8\xff", "image/jpeg"),
        (b"GIF8", "image/gif"),
        (b"%PDF-", "application/pdf"),
        (b"PK\x03\x04", "application/zip"),
        (b"\x1f\x8b", "application/gzip"),
        (b"\x7fELF", "application/x-elf"),
        (b"SQLite format 3\0", "application/vnd.sqlite3"),
        (b"\x28\xb5\x2f\xfd", "application/zstd"),
    ];
    if let Some((_, kind)) = MAGIC.iter().find(|(magic, _)| bytes.starts_with(magic)) {
        return kind;
    }
    if bytes.contains(&0) || str::from_utf8(&bytes[..whole_characters(bytes)]).is_err() {
        return "application/octet-stream";
    }
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("json") => "application/json",
        Some("html" | "htm") => "text/html",
        Some("css") => "text/css",
        Some("csv") => "text/csv",
        Some("js" | "mjs") => "text/javascript",
        Some("md") => "text/markdown",
        Some("svg") => "image/svg+xml",
        Some("toml") => "application/toml",
        Some("xml") => "application/xml",
        Some("yaml" | "yml") => "application/yaml",
        _ => "text/plain",
    }
}
