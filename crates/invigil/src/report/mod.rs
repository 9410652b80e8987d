//! A run as one HTML page that needs nothing: no script, no network, no Invigil. Pure: records go in, text comes out.
//!
//! `docs/replay.md` says what is promised. What is long is cut at a limit in bytes for each section.

mod gather;
mod html;
mod picture;
mod sections;

use invigil_audit::Fact;
use invigil_journal::{Error, Head, Reader, RunRef};

use gather::Gathered;
use html::Html;

const STYLE: &str = include_str!("page.css");
const POLICY: &str = "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'\">\n";

/// A page, and what it is about.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) html: String,
    /// The last record that is good.
    pub(crate) head: Option<Head>,
    /// What is wrong behind it.
    pub(crate) damage: Option<String>,
}

/// What is around the records: which run it is, and how its journal ends.
#[derive(Debug)]
struct Frame<'a> {
    run_id: &'a str,
    head: Option<Head>,
    live: bool,
    damage: Option<&'a str>,
}

/// Reads a journal to its end, or to damage, and makes the page of it.
pub(crate) fn report(run: &RunRef) -> Result<Report, Error> {
    let live = run.is_live();
    let mut gathered = Gathered::default();
    let mut reader = Reader::open(run.storage())?;
    let damage = loop {
        match reader.next() {
            Ok(Some(record)) => {
                let envelope = record.envelope()?;
                let event = envelope.event();
                gathered.take(&Fact::of(&envelope, &event));
            }
            Ok(None) => break None,
            Err(error @ Error::Damaged { .. }) => break Some(error.to_string()),
            Err(error) => return Err(error),
        }
    };
    let frame = Frame {
        run_id: run.run_id().as_str(),
        head: reader.head(),
        live,
        damage: damage.as_deref(),
    };
    Ok(Report {
        html: page(&gathered, &frame),
        head: frame.head,
        damage,
    })
}

fn page(gathered: &Gathered, frame: &Frame<'_>) -> String {
    let mut html = Html::default();
    html.raw("<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n");
    html.raw(POLICY);
    html.raw("<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
    html.raw("<meta name=\"referrer\" content=\"no-referrer\">\n");
    html.raw("<link rel=\"icon\" href=\"data:,\">\n<title>");
    html.text(frame.run_id).raw(" · Invigil</title>\n<style>\n");
    html.raw(STYLE).raw("</style></head>\n<body>\n");
    sections::all(&mut html, gathered, frame);
    html.raw("</body></html>\n");
    html.into_string()
}
