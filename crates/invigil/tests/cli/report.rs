//! `invigil report`: one page, strict, harmless, complete, small, and readable in a real browser.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use invigil_schema::Origin;
use serde_json::Value;

use crate::Invigil;
use crate::audit::{agent, project};
use crate::script::{add, begun, checked, created, denied, journal, unknown};

/// Reads a page strictly: every tag is one of ours and is closed, nothing is loaded, nothing runs. Says what it holds.
const CHECK: &str = r##"
import html.parser, json, re, sys
TAGS = set("html head meta link title style body header nav main section h1 h2 h3 p a dl dt dd div span figure figcaption "
           "svg rect details summary table thead tbody tr th td ul li pre code".split())
VOID = {"meta", "link"}
ATTRIBUTES = set("lang charset name content http-equiv rel href id class scope data-label role preserveaspectratio viewbox "
                 "x y width height".split())
class Page(html.parser.HTMLParser):
    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.open, self.texts, self.ids, self.cells, self.bars = [], [], {}, {}, 0
        self.section = None
    def handle_starttag(self, tag, attributes):
        assert tag in TAGS, tag
        names = [name for name, _ in attributes]
        assert len(set(names)) == len(names) and set(names) <= ATTRIBUTES, (tag, attributes)
        values = dict(attributes)
        if "href" in values:
            assert values["href"].startswith("#") or values["href"] == "data:,", values
        if tag == "section":
            self.section = values["id"]
        if "id" in values:
            assert values["id"] not in self.ids, values
            self.ids[values["id"]] = ""
            self.current = values["id"]
        self.bars += tag == "rect"
        if tag == "td":
            self.row.append([values["data-label"], ""])
        if tag == "tr":
            self.row = []
        if tag not in VOID:
            self.open.append((tag, values.get("id")))
    def handle_startendtag(self, tag, attributes):
        raise AssertionError(("self-closing", tag))
    def handle_endtag(self, tag):
        assert self.open and self.open[-1][0] == tag, (tag, self.open[-3:])
        self.open.pop()
        if tag == "tr" and self.row:
            self.cells.setdefault(self.section, []).append(dict(self.row))
    def handle_data(self, data):
        for tag, name in self.open:
            if name:
                self.ids[name] += data
        if any(tag == "td" for tag, _ in self.open):
            self.row[-1][1] += data
        if not any(tag == "style" for tag, _ in self.open):
            assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069]", data), data
    def handle_comment(self, data):
        raise AssertionError(("comment", data))
    def handle_pi(self, data):
        raise AssertionError(("instruction", data))
    def unknown_decl(self, data):
        raise AssertionError(("declaration", data))
text = open(sys.argv[1], encoding="utf-8").read()
assert text.startswith("<!DOCTYPE html>\n")
assert "default-src 'none'" in text and "url(" not in text and "@import" not in text
page = Page()
page.feed(text)
page.close()
assert not page.open, page.open
print(json.dumps({"ids": page.ids, "cells": page.cells, "bars": page.bars, "bytes": len(text.encode())}))
"##;

/// What a page holds, if it is one.
#[track_caller]
fn page(path: &Path) -> Value {
    let output = Command::new("python3")
        .args(["-c", CHECK])
        .arg(path)
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[track_caller]
fn text<'a>(page: &'a Value, id: &str) -> &'a str {
    page["ids"][id].as_str().unwrap()
}

fn cells<'a>(page: &'a Value, section: &str) -> &'a [Value] {
    page["cells"][section].as_array().map_or(&[], Vec::as_slice)
}

/// The sum of columns of the timeline.
fn counted(page: &Value, columns: &[&str]) -> usize {
    let rows = cells(page, "timeline").iter();
    let number =
        |row: &Value, column: &&str| row[column].as_str().unwrap().parse::<usize>().unwrap();
    rows.map(|row| {
        columns
            .iter()
            .map(|column| number(row, column))
            .sum::<usize>()
    })
    .sum()
}

const LAYERS: [&str; 5] = ["kernel", "runtime", "sdk", "client", "user"];

#[test]
fn a_page_says_what_the_journal_says() {
    for invigil in Invigil::everyone() {
        let script = "echo one > kept.txt; echo two > gone.txt; rm gone.txt; cat nowhere; exit 3";
        invigil.expect(
            3,
            &["run", "-q", "--run-id", "one", "--", "sh", "-c", script],
        );
        let (stdout, _) = invigil.expect(0, &["report", "one"]);
        assert!(stdout.contains("one.html"), "{stdout}");
        let page = page(Path::new(&invigil.at("one.html")));
        for section in [
            "summary",
            "timeline",
            "processes",
            "files",
            "network",
            "decisions",
            "checks",
            "claims",
            "health",
            "verify",
        ] {
            assert!(page["ids"][section].is_string(), "{section}");
        }
        assert!(text(&page, "summary").contains("exit 3"));
        assert!(text(&page, "processes").contains("cat nowhere"));
        assert!(text(&page, "files").contains("kept.txt"));
        assert!(!text(&page, "files").contains("gone.txt"));
        let events = invigil.events("one");
        assert_eq!(counted(&page, &LAYERS), events.len());
        for layer in LAYERS {
            let recorded = events
                .iter()
                .filter(|event| event["origin"] == layer)
                .count();
            assert_eq!(counted(&page, &[layer]), recorded, "{layer}");
        }
        assert!(page["bars"].as_u64().unwrap() > 1);
        let head = events.last().unwrap()["hash"].as_str().unwrap();
        assert_eq!(text(&page, "head"), head);
        // The program in the page checks the journal.
        let output = Command::new("python3")
            .args(["-c", text(&page, "python")])
            .arg(invigil.journal("one").parent().unwrap())
            .output()
            .unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert_eq!(
            said.trim(),
            format!("ok: {} records, head {head}", events.len())
        );
        invigil.expect(0, &["verify", "one", "--head", head]);
    }
}

#[test]
fn the_same_run_gives_the_same_bytes_and_no_file_is_replaced_unasked() {
    let invigil = Invigil::new();
    invigil.expect(0, &["run", "-q", "--run-id", "one", "--", "true"]);
    invigil.expect(0, &["report", "one"]);
    let (_, stderr) = invigil.expect(125, &["report", "one"]);
    assert!(stderr.contains("--force"), "{stderr}");
    let first = std::fs::read(invigil.at("one.html")).unwrap();
    std::fs::write(invigil.at("one.html"), "mine").unwrap();
    invigil.expect(125, &["report", "one"]);
    assert_eq!(std::fs::read(invigil.at("one.html")).unwrap(), b"mine");
    let (stdout, _) = invigil.expect(0, &["report", "one", "--force", "--json"]);
    let said: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(said["bytes"], first.len());
    assert_eq!(std::fs::read(invigil.at("one.html")).unwrap(), first);
    invigil.expect(0, &["report", "last", "-o", "other.html"]);
    assert_eq!(std::fs::read(invigil.at("other.html")).unwrap(), first);
    let inside = invigil.home().join("x.html");
    let (_, stderr) = invigil.expect(125, &["report", "one", "-o", inside.to_str().unwrap()]);
    assert!(stderr.contains("in the store"), "{stderr}");
    let (_, stderr) = invigil.expect(125, &["report", "one", "-o", "no/such/place.html"]);
    assert!(stderr.contains("cannot write the report"), "{stderr}");
    let names = std::fs::read_dir(invigil.directory.path()).unwrap();
    let mut names: Vec<String> = names
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(
        names,
        ["home", "one.html", "other.html"],
        "nothing is left over"
    );
}

const HOSTILE: [&str; 10] = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "\"><svg onload=alert(1)>",
    "' onmouseover='alert(1)",
    "</td></tr></table></section></main><h1>all is well</h1>",
    "&lt;b&gt;&amp;&#60;",
    "--><!-- ]]>",
    "</title></style><style>*{display:none}",
    "javascript:alert(1)",
    "\u{202e}txt.exe\u{1b}[2J\u{7}\u{0}",
];

#[test]
fn no_name_becomes_markup() {
    let invigil = Invigil::new();
    let file = journal(&invigil, "one");
    begun(&file);
    for name in HOSTILE {
        add(&file, Origin::Kernel, created(&format!("/w/{name}")));
        add(&file, Origin::Kernel, denied(&format!("/d/{name}")));
        let data = serde_json::to_string(name).unwrap();
        add(&file, Origin::Sdk, unknown(&data));
        checked(&file, name, name);
    }
    file.close().unwrap();
    invigil.expect(0, &["report", "one"]);
    let page = page(Path::new(&invigil.at("one.html")));
    let files = cells(&page, "files");
    assert_eq!(files.len(), HOSTILE.len());
    for name in HOSTILE.iter().take(9) {
        let has = |row: &Value| row["file"].as_str() == Some(&format!("/w/{name}"));
        assert!(files.iter().any(has), "{name}: {files:#?}");
        assert!(
            text(&page, "decisions").contains(&format!("/d/{name}")),
            "{name}"
        );
    }
    assert!(text(&page, "files").contains(r"\u{202e}txt.exe\u{1b}[2J\u{7}\u{0}"));
    assert!(text(&page, "health").contains("from_tomorrow"));
    let checks = cells(&page, "checks");
    assert_eq!(checks.len(), HOSTILE.len());
    assert_eq!(checks[0]["printed"], HOSTILE[0]);
    assert_eq!(checks[0]["result"], "failed: exit 1");
}

/// What the agent said is in the page word for word, with what is held of it and the records that say so.
#[test]
fn an_agent_that_lies_is_contradicted_in_the_page() {
    let invigil = Invigil::new();
    project(&invigil);
    let script = "
write('README.md', 'changed')
tool('c1', 'sh run_tests.sh', 0)
say('All tests pass. I only touched src/. <script>I deleted README.md.</script>')
";
    agent(&invigil, "one", script);
    invigil.expect(0, &["report", "one"]);
    let page = page(Path::new(&invigil.at("one.html")));
    let (stdout, _) = invigil.expect(1, &["claims", "one", "--json"]);
    let claims: Value = serde_json::from_str(&stdout).unwrap();
    let judged = claims["claims"].as_array().unwrap();
    let shown: Vec<&Value> = cells(&page, "claims")
        .iter()
        .filter(|row| row["finding"].is_string())
        .collect();
    assert_eq!(shown.len(), judged.len());
    for (row, claim) in shown.iter().zip(judged) {
        assert_eq!(row["finding"], claim["finding"]);
        assert_eq!(row["because"], claim["because"]);
        let events = claim["events"].as_array().unwrap().iter();
        let events: Vec<String> = events.map(Value::to_string).collect();
        assert_eq!(row["records"], events.join(", "));
    }
    let contradicted = shown.iter().filter(|row| row["finding"] == "contradicted");
    assert!(contradicted.count() >= 2, "{shown:#?}");
}

/// The same through a real run: an agent chooses names of files and arguments.
#[test]
fn an_agent_cannot_write_into_the_page() {
    let invigil = Invigil::new();
    let script =
        "printf x > '<img src=x onerror=alert(1)>'; sh -c : '</li></ul><script>alert(1)</script>'";
    invigil.expect(
        0,
        &["run", "-q", "--run-id", "one", "--", "sh", "-c", script],
    );
    invigil.expect(0, &["report", "one"]);
    let page = page(Path::new(&invigil.at("one.html")));
    assert!(text(&page, "files").contains("<img src=x onerror=alert(1)>"));
    assert!(text(&page, "processes").contains("</li></ul><script>alert(1)</script>"));
}

#[test]
fn a_hundred_thousand_events_stay_small() {
    let invigil = Invigil::new();
    let file = journal(&invigil, "one");
    begun(&file);
    let long = "<&\"'>".repeat(40);
    for n in 0..100_000 {
        match n % 3 {
            0 => add(&file, Origin::Kernel, created(&format!("/w/{n}/{long}"))),
            1 => add(&file, Origin::Kernel, denied(&format!("/d/{n}/{long}"))),
            _ => add(
                &file,
                Origin::Sdk,
                unknown(&format!("\"{n} {}\"", "<".repeat(200))),
            ),
        }
    }
    file.close().unwrap();
    invigil.expect(0, &["report", "one"]);
    let page = page(Path::new(&invigil.at("one.html")));
    let bytes = page["bytes"].as_u64().unwrap();
    println!("100,000 events, all different: {bytes} bytes");
    assert!(bytes < 5_000_000, "{bytes}");
    assert_eq!(counted(&page, &LAYERS), 100_003);
    assert_eq!(counted(&page, &["refused"]), 33_333);
    let shown = cells(&page, "files").len();
    let left = format!("{} more files are not on this page", 33_334 - shown);
    assert!(text(&page, "files").contains(&left), "{left}");
}

#[test]
fn a_damaged_journal_has_a_page_that_says_so() {
    let invigil = Invigil::new();
    let file = journal(&invigil, "one");
    begun(&file);
    for n in 0..10 {
        add(&file, Origin::Kernel, created(&format!("/w/file-{n}")));
    }
    file.close().unwrap();
    let path = invigil.journal("one");
    let good = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, good.replace("/w/file-5\"", "/w/FILE-5\"")).unwrap();
    let (_, stderr) = invigil.expect(1, &["report", "one"]);
    assert!(stderr.contains("record 8 is damaged"), "{stderr}");
    let whole = std::fs::read_to_string(invigil.at("one.html")).unwrap();
    let page = page(Path::new(&invigil.at("one.html")));
    assert!(whole.contains("The journal is damaged: record 8 is damaged"));
    assert_eq!(counted(&page, &LAYERS), 8);
    assert!(!whole.contains("file-6") && whole.contains("file-4"));
}

/// Where a browser is.
fn browser() -> Option<PathBuf> {
    let names = [
        "chromium",
        "chromium-browser",
        "google-chrome",
        "google-chrome-stable",
        "chrome",
        "chrome-headless-shell",
    ];
    let path = std::env::var_os("PATH")?;
    let mut places: Vec<PathBuf> = std::env::split_paths(&path).collect();
    // Where playwright puts its own.
    let cache = std::env::home_dir()?.join(".cache/ms-playwright");
    let versions = std::fs::read_dir(cache).into_iter().flatten().flatten();
    for version in versions {
        places.extend(
            ["chrome-linux", "chrome-headless-shell-linux64"].map(|name| version.path().join(name)),
        );
    }
    let all = places
        .iter()
        .flat_map(|place| names.map(|name| place.join(name)));
    std::env::var_os("INVIGIL_TEST_BROWSER")
        .map(PathBuf::from)
        .or_else(|| all.into_iter().find(|path| path.is_file()))
}

/// A browser on a page, at the width of a phone.
struct Phone<'a> {
    browser: PathBuf,
    invigil: &'a Invigil,
}

impl Phone<'_> {
    /// What it prints, and what it says on the console.
    fn open(&self, page: &str, options: &[&str]) -> (String, String) {
        let output = Command::new(&self.browser)
            .args(["--headless", "--no-sandbox", "--disable-gpu"])
            .args(["--hide-scrollbars", "--window-size=390,844"])
            .args(["--enable-logging=stderr", "--virtual-time-budget=3000"])
            .arg(format!("--user-data-dir={}", self.invigil.at("profile")))
            .args(options)
            .arg(format!("file://{}", self.invigil.at(page)))
            .stdin(Stdio::null())
            .current_dir(self.invigil.directory.path())
            .output()
            .unwrap();
        let console = String::from_utf8_lossy(&output.stderr)
            .lines()
            .filter(|line| line.contains("CONSOLE"))
            .map(|line| format!("{line}\n"))
            .collect();
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        (printed, console)
    }

    /// What a script sees in a page, as the numbers that it makes of it. The page itself lets none run, so this is a
    /// copy that does; and it is in a frame, because a window has a least width.
    fn probe(&self, page: &str, script: &str) -> Vec<u64> {
        let whole = std::fs::read_to_string(self.invigil.at(page)).unwrap();
        let loose = whole.replace(
            "default-src 'none'",
            "default-src 'none'; script-src 'unsafe-inline'",
        );
        assert_ne!(loose, whole);
        let probe = format!(
            "<script>onload=()=>parent.postMessage([{script}].join(' '),'*')</script></body>"
        );
        std::fs::write(
            self.invigil.at("probed.html"),
            loose.replace("</body>", &probe),
        )
        .unwrap();
        let frame = "<!doctype html><title></title><script>onmessage=m=>document.title=m.data</script>\
                     <iframe src=probed.html width=390 height=844 style='border:0'></iframe>";
        std::fs::write(self.invigil.at("frame.html"), frame).unwrap();
        let (dom, console) = self.open("frame.html", &["--dump-dom"]);
        assert_eq!(console, "");
        let title = dom.split("<title>").nth(1).unwrap();
        let title = title.split("</title>").next().unwrap();
        title
            .split(' ')
            .map(|word| word.parse().expect(title))
            .collect()
    }
}

/// At the width of a phone: nothing on the console, nothing wider than the screen, every section and every bar there,
/// and the bars as high as the numbers say.
#[test]
fn a_real_browser_shows_it() {
    let Some(browser) = browser() else {
        println!(
            "skipped: no chromium or google-chrome on PATH, and INVIGIL_TEST_BROWSER is not set"
        );
        return;
    };
    let invigil = Invigil::new();
    let phone = Phone {
        browser,
        invigil: &invigil,
    };
    // Whoever listens hears something.
    let loud = "<!doctype html><script>console.error('heard')</script>";
    std::fs::write(invigil.at("loud.html"), loud).unwrap();
    let (_, console) = phone.open("loud.html", &["--dump-dom"]);
    assert!(console.contains("heard"), "{console}");

    let long = "x".repeat(600);
    let script = format!(
        "echo x > '<script>document.title=1</script>'; mkdir -p a/very/long/way/to/a/file/that/nobody/reads; \
         cat nowhere; test {long} = y; sleep 0.2; for i in 1 2 3 4 5 6 7 8 9; do echo $i > f$i; done"
    );
    invigil.output(&["run", "-q", "--run-id", "one", "--", "sh", "-c", &script]);
    invigil.expect(0, &["report", "one"]);
    let page = std::fs::read_to_string(invigil.at("one.html")).unwrap();
    let (_, console) = phone.open("one.html", &["--screenshot=phone.png"]);
    assert_eq!(console, "");
    assert!(std::fs::metadata(invigil.at("phone.png")).unwrap().len() > 1000);

    let seen = phone.probe(
        "one.html",
        "document.documentElement.scrollWidth, innerWidth, document.querySelectorAll('section').length",
    );
    let [width, window, sections] = seen[..] else {
        panic!("{seen:?}")
    };
    assert_eq!(window, 390);
    assert!(width <= window, "{width} > {window}");
    assert_eq!(sections, 10);

    // Each bar as it is drawn: which lane, how many records it stands for, how high it is in hundredths of a pixel.
    let drawn = phone.probe(
        "one.html",
        "[...document.querySelectorAll('svg')].flatMap((lane, at) => [...lane.querySelectorAll('rect')].flatMap(bar => \
         [at, parseInt(bar.textContent), Math.round(100 * bar.getBoundingClientRect().height)])).join(' ')",
    );
    let bars: Vec<(u64, u64, u64)> = drawn
        .chunks_exact(3)
        .map(|bar| (bar[0], bar[1], bar[2]))
        .collect();
    assert_eq!(bars.len(), page.matches("<rect").count());
    assert!(
        bars.iter()
            .all(|(_, count, height)| *count > 0 && *height > 100)
    );
    let records: u64 = bars.iter().map(|(_, count, _)| count).sum();
    assert_eq!(records, invigil.events("one").len() as u64);
    let mut sorted = bars.clone();
    sorted.sort_unstable();
    let higher = |pair: &[(u64, u64, u64)]| {
        let [(lane, less, low), (other, more, high)] = pair else {
            unreachable!()
        };
        lane == other && less < more && low < high
    };
    // In the kernel's lane at least, not all are alike; nowhere does a higher bar stand for less.
    assert!(sorted.windows(2).any(higher), "{bars:?}");
    for pair in sorted.windows(2) {
        assert!(pair[0].0 != pair[1].0 || pair[0].2 <= pair[1].2, "{bars:?}");
    }
}
