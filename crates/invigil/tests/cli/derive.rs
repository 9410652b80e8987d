//! Contracts that a model writes: any command, and two wire formats over HTTP, with all that servers do wrong.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::Invigil;
use super::repos::put;

const GOOD: &str =
    r#"{"description": "d", "checks": [{"name": "adds", "command": "python3 -m unittest"}]}"#;

/// How a server answers one request.
enum Answer {
    Text(String),
    Status(u16, &'static str),
    /// Fewer bytes than announced.
    Cut,
    /// Too late.
    Late,
    /// JSON of another format.
    Odd,
}

struct Request {
    line: String,
    headers: String,
    body: Value,
}

/// A server that speaks both formats, by what it is asked.
fn server(answers: Vec<Answer>) -> (String, Receiver<Request>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (requests, received) = channel();
    thread::spawn(move || {
        for answer in answers {
            let (mut stream, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            let (mut headers, mut length) = (String::new(), 0);
            loop {
                let mut header = String::new();
                reader.read_line(&mut header).unwrap();
                if header.trim().is_empty() {
                    break;
                }
                let header = header.to_ascii_lowercase();
                if let Some(value) = header.strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                headers += &header;
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            let anthropic = line.contains("/v1/messages");
            let body = serde_json::from_slice(&body).unwrap();
            drop(requests.send(Request {
                line,
                headers,
                body,
            }));
            let wrap = |text: &str| match anthropic {
                true => {
                    json!({ "content": [{ "type": "thinking", "thinking": "hm" }, { "type": "text", "text": text }] })
                }
                false => {
                    json!({ "choices": [{ "message": { "role": "assistant", "content": text } }] })
                }
            };
            let (status, body, more, cut) = match answer {
                Answer::Text(text) => (200, wrap(&text).to_string(), "", 0),
                Answer::Status(status, more) => (status, "{\"error\": \"no\"}".to_owned(), more, 0),
                Answer::Cut => (200, wrap(GOOD).to_string(), "", 20),
                Answer::Odd => (200, "{\"hello\": 1}".to_owned(), "", 0),
                Answer::Late => {
                    thread::sleep(Duration::from_secs(3));
                    continue;
                }
            };
            let head = format!(
                "HTTP/1.1 {status} X\r\ncontent-length: {}\r\n{more}connection: close\r\n\r\n",
                body.len()
            );
            drop(stream.write_all(head.as_bytes()));
            drop(stream.write_all(&body.as_bytes()[..body.len() - cut]));
        }
    });
    (url, received)
}

fn derive(invigil: &Invigil, code: i32, options: &[&str]) -> (String, String) {
    let args = [
        &[
            "contract",
            "derive",
            "--intent",
            "make it add",
            "--repo",
            ".",
        ],
        options,
    ]
    .concat();
    let mut command = invigil.command(&args);
    command
        .env("OPENAI_API_KEY", "sk-key-of-openai")
        .env("ANTHROPIC_API_KEY", "key-of-anthropic");
    let output = command.output().unwrap();
    let (out, err) = (
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    );
    assert_eq!(output.status.code(), Some(code), "{out}\n{err}");
    (out, err)
}

fn prompt(request: &Request) -> &str {
    request.body["messages"][0]["content"].as_str().unwrap()
}

#[test]
fn both_wire_formats_with_their_keys() {
    let invigil = Invigil::new();
    put(&invigil, "Makefile", "test:\n");
    for (option, path, key) in [
        (
            "--openai",
            "POST /chat/completions ",
            "authorization: bearer sk-key-of-openai",
        ),
        (
            "--anthropic",
            "POST /v1/messages ",
            "x-api-key: key-of-anthropic",
        ),
    ] {
        let fenced = format!("Here you are:\n```json\n{GOOD}\n```\nGood luck!");
        let (url, received) = server(vec![Answer::Text(fenced)]);
        let (out, _) = derive(&invigil, 0, &[option, &url, "--model", "m"]);
        let contract: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(contract["checks"][0]["name"], "adds");
        let request = received.recv().unwrap();
        assert!(request.line.starts_with(path), "{}", request.line);
        assert!(request.headers.contains(key), "{}", request.headers);
        assert_eq!(request.body["model"], "m");
        assert!(prompt(&request).contains("make it add"));
        assert!(prompt(&request).contains("`make test`"));
    }
}

#[test]
fn servers_that_fail_are_asked_the_same_again() {
    let invigil = Invigil::new();
    for option in ["--openai", "--anthropic"] {
        let (url, received) = server(vec![
            Answer::Status(429, "retry-after: 1\r\n"),
            Answer::Status(500, ""),
            Answer::Cut,
            Answer::Odd,
            Answer::Late,
            Answer::Text(GOOD.into()),
        ]);
        let options = [
            option,
            &url,
            "--model",
            "m",
            "--attempts",
            "6",
            "--model-timeout",
            "2s",
        ];
        let (_, err) = derive(&invigil, 0, &options);
        assert!(
            err.contains("HTTP 429") && err.contains("HTTP 500"),
            "{err}"
        );
        assert!(!err.contains("key-of"), "{err}");
        let requests: Vec<Request> = received.iter().collect();
        assert_eq!(requests.len(), 6);
        assert!(
            requests
                .iter()
                .all(|request| prompt(request) == prompt(&requests[0]))
        );
    }
}

#[test]
fn a_bad_answer_is_repaired_in_two_calls_and_the_last_problem_is_told() {
    let invigil = Invigil::new();
    let bad = r#"Sure: {"checks": [{"name": "unique_snake_case_label", "command": "cargo -V"}]}"#;
    let (url, received) = server(vec![Answer::Text(bad.into()), Answer::Text(GOOD.into())]);
    derive(&invigil, 0, &["--anthropic", &url, "--model", "m"]);
    let requests: Vec<Request> = received.iter().collect();
    assert_eq!(requests.len(), 2);
    for words in [
        "failed validation",
        "placeholder name",
        "toolchain-only no-op",
    ] {
        assert!(prompt(&requests[1]).contains(words), "{words}");
    }
    let cut = GOOD[..30].to_owned();
    let (url, _received) = server(vec![Answer::Text("No.".into()), Answer::Text(cut)]);
    let (_, err) = derive(
        &invigil,
        1,
        &["--openai", &url, "--model", "m", "--attempts", "2"],
    );
    assert!(
        err.contains("after 2 attempts") && err.contains("ends too early"),
        "{err}"
    );
}

#[test]
fn any_command_can_be_the_model() {
    for invigil in Invigil::everyone() {
        put(&invigil, "answer.json", GOOD);
        let (out, _) = derive(
            &invigil,
            0,
            &["--model-cmd", "cat > prompt; echo Yes:; cat answer.json"],
        );
        assert!(out.contains("\"adds\""), "{out}");
        let prompt = std::fs::read_to_string(invigil.at("prompt")).unwrap();
        assert!(prompt.contains("make it add"), "{prompt}");
        let (_, err) = derive(
            &invigil,
            1,
            &["--model-cmd", "echo broken >&2; exit 3", "--attempts", "0"],
        );
        assert!(
            err.contains("after 1 attempts") && err.contains("exit 3: broken"),
            "{err}"
        );
        let late = [
            "--model-cmd",
            "sleep 304",
            "--attempts",
            "1",
            "--model-timeout",
            "1s",
        ];
        let (_, err) = derive(&invigil, 1, &late);
        assert!(err.contains("no answer in 1s"), "{err}");
        let (_, err) = derive(
            &invigil,
            125,
            &["--openai", "http://example.com", "--model", "m"],
        );
        assert!(err.contains("https://"), "{err}");
        derive(&invigil, 125, &[]);
    }
}
