//! Secrets that must go and ordinary text that must stay. The secrets are made up, and put together here from pieces so
//! that no scanner takes them for real ones.

use std::borrow::Cow;
use std::time::Instant;

use invigil_schema::{
    CallResult, Digest, Event, FileOp, FileOpKind, ObserverNote, OpenFlag, ProcessExec, ProcessRef,
    SdkEvent, SdkEventType,
};
use proptest::prelude::*;
use serde_json::json;

use super::*;

fn redactor() -> Redactor {
    Redactor::new([7; 32])
}

fn alnum(length: usize) -> String {
    let alphabet = "aB3dE6gH9jK2mN5pQ8sT1vW4xY7z";
    alphabet.chars().cycle().take(length).collect()
}

fn words(text: &[&str]) -> Vec<OsText> {
    text.iter().map(|&word| word.into()).collect()
}

fn joined(argv: &[OsText]) -> String {
    let words: Vec<_> = argv.iter().map(OsText::to_string_lossy).collect();
    words.join(" ")
}

/// Every shape: the rule, and the secret itself.
fn shapes() -> Vec<(&'static str, String)> {
    let upper = |n| alnum(200).to_uppercase()[..n].to_owned();
    let hex = |n: usize| "0123456789abcdef".repeat(8)[..n].to_owned();
    let jwt = ["ey", "JhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NSJ9.", &alnum(43)].concat();
    vec![
        ("aws_key", ["AK", "IA", &upper(16)].concat()),
        ("aws_key", ["AS", "IA", &upper(16)].concat()),
        ("gcp_key", ["AI", "za", &alnum(35)].concat()),
        ("gcp_key", ["ya", "29.", &alnum(60)].concat()),
        ("gcp_key", ["GOC", "SPX-", &alnum(28)].concat()),
        ("azure_key", ["abc8", "Q~", &alnum(34)].concat()),
        ("github_token", ["gh", "p_", &alnum(36)].concat()),
        ("github_token", ["gh", "s_", &alnum(36)].concat()),
        (
            "github_token",
            ["github", "_pat_", &alnum(22), "_", &alnum(59)].concat(),
        ),
        ("gitlab_token", ["gl", "pat-", &alnum(20)].concat()),
        (
            "slack_token",
            ["xo", "xb-", "1234567890-", &alnum(24)].concat(),
        ),
        ("npm_token", ["np", "m_", &alnum(36)].concat()),
        ("pypi_token", ["py", "pi-AgE", &alnum(120)].concat()),
        ("openai_key", ["sk", "-proj-", &alnum(48)].concat()),
        ("openai_key", ["sk", "-", &alnum(48)].concat()),
        ("anthropic_key", ["sk", "-ant-api03-", &alnum(90)].concat()),
        ("stripe_key", ["sk", "_live_", &alnum(24)].concat()),
        ("stripe_key", ["rk", "_test_", &alnum(24)].concat()),
        ("huggingface_token", ["h", "f_", &alnum(34)].concat()),
        ("vault_token", ["hv", "s.", &alnum(30)].concat()),
        ("digitalocean_token", ["do", "p_v1_", &hex(64)].concat()),
        (
            "sendgrid_key",
            ["S", "G.", &alnum(22), ".", &alnum(43)].concat(),
        ),
        ("age_key", ["AGE-SECRET", "-KEY-1", &upper(58)].concat()),
        ("jwt", jwt),
    ]
}

#[test]
fn every_known_shape_goes_wherever_it_stands() {
    for (rule, secret) in shapes() {
        for (before, after) in [
            ("", ""),
            ("see ", "."),
            ("\"", "\""),
            ("https://host/path/", "?x=1"),
            ("über=", "\n"),
            ("/tmp/", "/x"),
        ] {
            let text = format!("{before}{secret}{after}");
            let redacted = redactor().text(&text).into_owned();
            assert!(redacted.contains("<redacted:"), "{rule}: {text}");
            assert!(
                !redacted.contains(&secret[secret.len() / 2..]),
                "{rule}: {redacted}"
            );
            assert!(
                redacted.starts_with(before) && redacted.ends_with(after),
                "{redacted}"
            );
        }
        let alone = redactor().text(&secret).into_owned();
        assert!(
            alone.starts_with(&format!("<redacted:{rule}:")),
            "{rule}: {alone}"
        );
    }
}

/// What is written, and what must be gone from it.
#[test]
fn values_of_names_flags_and_headers_go() {
    let x = "hunter2";
    let cases = [
        format!("Authorization: Basic {x}=="),
        format!("authorization: Bearer {x}"),
        format!("{{\"Authorization\":\"token {x}\",\"a\":1}}"),
        format!("{{\\\"authorization\\\": \\\"Bearer {x}\\\"}}"),
        format!("Bearer {x}{x}"),
        format!("Cookie: sid={x}; b=1"),
        format!("https://user:{x}@example.org/path"),
        format!("postgres://app:{x}@db:5432/prod"),
        format!("https://{x}@github.com/a/b.git"),
        format!("GET /x?access_token={x}&page=2"),
        format!("DB_PASSWORD={x} make"),
        format!("export AWS_SECRET_ACCESS_KEY={x}"),
        format!("export API_KEY=\"{x} and more\""),
        format!("set MY_SERVICE_TOKEN='{x}'"),
        format!("password: \"{x}\""),
        format!("password = {x}"),
        format!("{{\"apiKey\": \"{x}\"}}"),
        format!("{{\"client_secret\":\"{x}\"}}"),
        format!("Server=db;User Id=sa;Pwd={x};"),
        format!("AccountName=a;AccountKey={x}==;EndpointSuffix=core"),
        format!("//registry.npmjs.org/:_authToken={x}"),
        format!("tool --password {x} --verbose"),
        format!("tool --password={x}"),
        format!("tool --api-key '{x}'"),
        format!("sh -c \"tool --token {x}\""),
        format!("curl -u admin:{x} https://example.org"),
        format!("curl -sSu admin:{x} https://example.org"),
        format!("curl --user 'admin:{x}' https://example.org"),
        format!("curl -H 'Authorization: Bearer {x}' https://example.org"),
        format!("curl -H \"X-Api-Key: {x}\" https://example.org"),
        format!("cd /tmp && sshpass -p {x} ssh host"),
        format!("mysql -u root -p{x} shop"),
        format!("echo ok; docker login -u me -p {x} registry"),
        format!("redis-cli -a {x} ping"),
        format!("openssl enc -aes256 -pass pass:{x} -in f"),
        format!("smbclient //host/share -U me%{x}"),
    ];
    for text in cases {
        let redacted = redactor().text(&text).into_owned();
        assert!(!redacted.contains(x), "{text}\n{redacted}");
        assert_eq!(redactor().text(&redacted), redacted, "idempotent");
    }
}

#[test]
fn what_is_not_secret_beside_it_stays() {
    let text = |text: &str| redactor().text(text).into_owned();
    let kept = text("https://user:hunter2@example.org/path?x=1");
    assert!(kept.starts_with("https://<redacted:userinfo:"), "{kept}");
    assert!(kept.ends_with(">@example.org/path?x=1"), "{kept}");
    let kept = text("Authorization: Bearer hunter2");
    assert!(
        kept.starts_with("Authorization: Bearer <redacted:authorization:"),
        "{kept}"
    );
    let kept = text("curl -u admin:hunter2 https://example.org");
    assert!(kept.starts_with("curl -u admin:<redacted:flag:"), "{kept}");
    assert!(kept.ends_with("> https://example.org"), "{kept}");
    let kept = text("A=1 DB_PASSWORD=hunter2 B=2");
    assert!(
        kept.starts_with("A=1 DB_PASSWORD=<") && kept.ends_with("> B=2"),
        "{kept}"
    );
}

fn key(label: &str) -> (String, String) {
    let body = format!("{}\n{}\n", alnum(64), alnum(64));
    let begin = ["-----BEGIN ", label, "-----\n"].concat();
    let end = ["-----END ", label, "-----"].concat();
    (format!("{begin}{body}{end}"), body)
}

#[test]
fn private_keys_go_whole_even_when_cut() {
    for label in [
        "PRIVATE KEY",
        "RSA PRIVATE KEY",
        "OPENSSH PRIVATE KEY",
        "PGP PRIVATE KEY BLOCK",
    ] {
        let (key, _) = key(label);
        let whole = redactor().text(&format!("a\n{key}\nb")).into_owned();
        assert!(whole.starts_with("a\n<redacted:private_key:"), "{whole}");
        assert!(whole.ends_with(">\nb") && whole.len() < 50, "{whole}");
        let escaped = key.replace('\n', "\\n");
        let escaped = redactor().text(&escaped).into_owned();
        assert!(escaped.len() < 50, "{escaped}");
        for cut in label.len() + 20..key.len() {
            let cut = redactor().text(&key[..cut]).into_owned();
            assert!(
                cut.len() < 50 && cut.starts_with("<redacted:private_key"),
                "{cut}"
            );
        }
        let beheaded = redactor().text(&key[60..]).into_owned();
        assert!(beheaded.starts_with("<redacted:private_key"), "{beheaded}");
    }
    for label in ["PUBLIC KEY", "CERTIFICATE"] {
        let (key, _) = key(label);
        assert_eq!(redactor().text(&key), key);
    }
}

#[test]
fn the_order_of_arguments_shows_secrets() {
    let cases: &[&[&str]] = &[
        &["tool", "--password", "hunter2"],
        &["tool", "-password", "hunter2"],
        &["tool", "--password=hunter2 with spaces"],
        &["tool", "--api-key", "hunter2"],
        &["env", "DB_PASSWORD=hunter2 and spaces", "make"],
        &["sudo", "env", "GITHUB_TOKEN=hunter2", "gh"],
        &["curl", "-u", "me:hunter2", "https://example.org"],
        &["curl", "-ume:hunter2", "https://example.org"],
        &["curl", "--user=me:hunter2", "https://example.org"],
        &["/usr/bin/curl", "-H", "Authorization: Bearer hunter2"],
        &["curl", "-b", "sid=hunter2"],
        &["sshpass", "-p", "hunter2", "ssh", "host"],
        &["sshpass", "-phunter2", "ssh", "host"],
        &["timeout", "5", "mysql", "-phunter2"],
        &["docker", "login", "-u", "me", "-p", "hunter2"],
        &["sh", "-c", "mysql --password hunter2 -e 'select 1'"],
        &["bash", "-lc", "export TOKEN=hunter2; exec tool"],
        &[
            "sh",
            "-c",
            "curl -u 'me:hunter2 and more' https://example.org",
        ],
        &["unzip", "-P", "hunter2", "a.zip"],
        &["keytool", "-storepass", "hunter2"],
        &["gpg", "--batch", "--passphrase", "hunter2", "-d", "f"],
    ];
    for case in cases {
        let redacted = redactor().argv(&words(case));
        assert_eq!(redacted.len(), case.len());
        let text = joined(&redacted);
        let gone = !text.contains("hunter2") && !text.contains("spaces") && !text.contains("more");
        assert!(gone && text.contains("<redacted:"), "{case:?}\n{text}");
        assert_eq!(redactor().argv(&redacted), redacted, "idempotent");
    }
}

#[test]
fn empty_words_and_bare_dashes_are_handled() {
    let cases: &[&[&str]] = &[
        &["curl", ""],
        &["curl", "-", "--", "-u"],
        &["curl", "", "-sSu", "me:hunter2", ""],
        &["sh", "-c", "curl '' - -sSu 'me:hunter2'"],
        &["sh", "-c", "curl \"\" \\"],
        &["", "curl", "-é", "é"],
    ];
    for case in cases {
        let redacted = redactor().argv(&words(case));
        assert_eq!(redacted.len(), case.len());
        assert!(!joined(&redacted).contains("hunter2"), "{case:?}");
    }
}

#[test]
fn ordinary_text_stays() {
    let sha256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    let innocents = [
        "/usr/lib/python3.11/site-packages/token.py".to_owned(),
        format!("/nix/store/{}-openssl-3.0", &alnum(32).to_lowercase()),
        format!("sha256:{sha256}"),
        format!("/blobs/{}/{}", &sha256[..2], &sha256[2..]),
        format!("git checkout {}", &sha256[..40]),
        format!("registry/app@sha256:{sha256}"),
        "sha512-z4PhNX7vuL3xVChQ1m2AB9Yg5AULVxXcg/SpIdNs6c5H0NE8XYXysP+DGNKHfuwvY7kxvUdBeoGlODJ6+SfaPg==".into(),
        "550e8400-e29b-41d4-a716-446655440000".into(),
        "run_0193a1b2c3d4e5f60718293a4b5c6d7e".into(),
        "git clone https://github.com/rust-lang/rust.git".into(),
        "git clone ssh://git@github.com/rust-lang/rust.git".into(),
        "git clone git@github.com:rust-lang/rust.git".into(),
        "ssh -p 2222 me@host uptime".into(),
        "mkdir -p /tmp/a/b".into(),
        "cp -p a b".into(),
        "docker run -p 8080:80 nginx".into(),
        "nmap -p 22 host".into(),
        "mysql -p shop".into(),
        "curl -fsSL https://example.org/install.sh -o install.sh".into(),
        "curl -u \"$USER:$PASS\" https://example.org".replace("$USER:", ""),
        "cargo test -p invigil-journal --test archive".into(),
        "grep -rn 'token' src/".into(),
        "cargo test tokens::secret_name".into(),
        "pytest -k test_password_reset".into(),
        "vim src/secrets/mod.rs".into(),
        "kubectl get secrets -n prod".into(),
        "max_tokens=4096".into(),
        "{\"total_tokens\": 1234, \"prompt_tokens\": 12}".into(),
        "{\"next_token\":\"abc123def\"}".into(),
        "PWD=/home/user OLDPWD=/tmp".into(),
        "docker login --password-stdin".into(),
        "tool --token-file /run/secrets/token".into(),
        "SECRET_NAME=prod/db".into(),
        "export TOKEN=$(cat /run/token)".into(),
        "tool --password \"$PASSWORD\"".into(),
        "DB_PASSWORD=${DB_PASSWORD}".into(),
        "error: unexpected token: `}`".into(),
        "syntax error near unexpected token `('".into(),
        "fn login(user: &str, password: &str) -> Token".into(),
        "def f(token: str, secret: Optional[str] = None):".into(),
        "let token = parser.next_token();".into(),
        "password = getpass.getpass()".into(),
        "if token == expected {".into(),
        "use --token to authenticate".into(),
        "Bearer authentication is described in RFC 6750".into(),
        "npm_config_cache=/root/.npm npm_lifecycle_event=install".into(),
        "PUBLIC_KEY=abc CACHE_KEY=v1-linux".into(),
        "sk-learn-is-not-a-key-but-a-long-name-with-1".into(),
        "/home/user/task-sk-0193a1b2c3d4e5f60718293a4b5c6d7e".into(),
        "python -m pip install pypi-simple==1.0".into(),
        "-----BEGIN CERTIFICATE-----".into(),
        "https://example.org/?q=a@b".into(),
        "zip -r out.zip dir && unzip -l out.zip".into(),
        "openssl x509 -in cert.pem -noout -text".into(),
        "make -j2 CC=gcc KEYBOARD=us".into(),
        "find . -name '*.key' -o -name '*_key.pub'".into(),
        "{\"logprobs\":[{\"token\":\"Hello\"}]}".replace("\"Hello\"", "12"),
    ];
    for text in innocents {
        assert_eq!(redactor().text(&text), text);
        let split: Vec<&str> = text.split(' ').collect();
        if !text.contains(['"', '\'', '$', '`']) && !text.starts_with("use ") {
            let argv = words(&split);
            assert_eq!(redactor().argv(&argv), argv, "{text}");
        }
    }
}

#[test]
fn equal_secrets_look_equal_and_only_with_the_same_key() {
    let one = redactor().text("--password=hunter2").into_owned();
    let two = redactor().text("DB_PASSWORD=hunter2").into_owned();
    let other = redactor().text("--password=hunter3").into_owned();
    let foreign = Redactor::new([8; 32])
        .text("--password=hunter2")
        .into_owned();
    let digits = |text: &str| text[text.len() - 9..text.len() - 1].to_owned();
    assert_eq!(digits(&one), digits(&two));
    assert_ne!(digits(&one), digits(&other));
    assert_ne!(digits(&one), digits(&foreign));
    assert!(digits(&one).bytes().all(|byte| byte.is_ascii_hexdigit()));
}

#[test]
fn bytes_that_are_no_text_are_kept_around_the_secret() {
    let redacted = redactor()
        .bytes(b"\xff\xfePASSWORD=hun\xffter2 \xff")
        .into_owned();
    assert!(redacted.starts_with(b"\xff\xfePASSWORD=<redacted:variable:"));
    assert!(redacted.ends_with(b"> \xff"));
    assert!(matches!(redactor().bytes(b"\xff/plain"), Cow::Borrowed(_)));
}

fn process() -> ProcessRef {
    ProcessRef { pid: 7, start: 9 }
}

fn file_op(path: &str) -> Event {
    FileOp {
        process: process(),
        op: FileOpKind::Create,
        path: path.into(),
        to: None,
        flags: vec![OpenFlag::Write],
        mode: None,
        detail: None,
        result: CallResult::Ok,
    }
    .into()
}

#[test]
fn events_lose_secrets_and_nothing_else() {
    let exec = ProcessExec {
        process: process(),
        parent: None,
        executable: "/usr/bin/mysql".into(),
        requested: None,
        argv: words(&["mysql", "--password", "hunter2"]),
        argv_cut_bytes: 0,
        cwd: "/tmp".into(),
        sha256: Some(Digest::ZERO),
    };
    let Event::ProcessExec(redacted) = redactor().event(&exec.clone().into()).into_owned() else {
        panic!("another kind")
    };
    assert!(!joined(&redacted.argv).contains("hunter2"));
    assert_eq!(
        (redacted.sha256, redacted.executable),
        (exec.sha256, exec.executable)
    );

    let plain = file_op("/home/user/src/main.rs");
    assert!(matches!(redactor().event(&plain), Cow::Borrowed(_)));
    let note = ObserverNote {
        process: None,
        note: invigil_schema::Note::Continued,
        detail: "url https://a:hunter2@host".into(),
    };
    let note = redactor().event(&note.into()).into_owned();
    assert!(!format!("{note:?}").contains("hunter2"));
}

#[test]
fn reported_bodies_are_looked_at_inside() {
    let body = json!({
        "run_id": "run_1", "tool_call_id": "PASSWORD=kept", "seq": 3,
        "input": { "command": "curl -u me:hunter2 https://x", "argv": ["tool", "--token", "hunter2"] },
        "nested": [{ "password": "hunter2", "pin": 1 }, { "db_password": 1234567 }],
        "usage": { "max_tokens": 100, "token": "Hello" },
        "note": "\"apiKey\": \"hunter2\"",
    });
    let event = SdkEvent {
        connection: Some(0),
        line: 1,
        process: None,
        event_type: SdkEventType::Message,
        source: "x".into(),
        tool_call_id: Some("PASSWORD=kept".into()),
        tool: None,
        body: body.clone(),
    };
    let Event::SdkEvent(redacted) = redactor().event(&event.into()).into_owned() else {
        panic!("another kind")
    };
    let text = redacted.body.to_string();
    assert!(
        !text.contains("hunter2") && !text.contains("1234567"),
        "{text}"
    );
    for kept in ["run_id", "tool_call_id", "seq", "usage"] {
        assert_eq!(redacted.body[kept], body[kept]);
    }
    assert_eq!(redacted.tool_call_id.as_deref(), Some("PASSWORD=kept"));
    let again = redactor()
        .event(&Event::SdkEvent(redacted.clone()))
        .into_owned();
    assert!(matches!(again, Event::SdkEvent(again) if again == redacted));

    let unknown = Event::Unknown {
        kind: "tomorrow".into(),
        data: serde_json::value::RawValue::from_string("{\"password\": \"hunter2\"}".into())
            .unwrap(),
    };
    let unknown = redactor().event(&unknown).into_owned();
    assert!(!format!("{unknown:?}").contains("hunter2"));
}

/// Text that is full of markers, quotes and placeholders.
fn fragments() -> impl Strategy<Value = String> {
    let mut pieces: Vec<String> = [
        "password",
        "token",
        "=",
        ":",
        " ",
        "\"",
        "'",
        "\\\"",
        "--",
        "-",
        "curl -u ",
        "a:b",
        "@",
        "://",
        "https",
        "\n",
        ";",
        "(",
        ")",
        "<",
        ">",
        "<redacted:",
        "<redacted:token:0123abcd>",
        "Authorization: ",
        "Bearer ",
        "sk-",
        "eyJ",
        "-----BEGIN PRIVATE KEY-----",
        "-----END PRIVATE KEY-----",
        "é",
        "$X",
        "KEY",
        "_",
        "x1Y2",
        "sshpass -p",
        "curl ",
        "mysql ",
        "-",
        " ",
        "'",
        "\"",
        "\\",
        "Cookie: ",
        "SECRET",
        "pass:",
        "openssl -pass ",
        "AKIA",
        "{",
        "}",
        "&",
        "?sig=",
    ]
    .map(str::to_owned)
    .to_vec();
    pieces.push(alnum(40));
    prop::collection::vec(prop::sample::select(pieces), 0..24).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn redacting_twice_changes_nothing(text in fragments()) {
        let once = redactor().text(&text).into_owned();
        prop_assert_eq!(redactor().text(&once), once.as_str());
    }

    #[test]
    fn redacting_arguments_twice_changes_nothing(argv in prop::collection::vec(fragments(), 0..5)) {
        let argv: Vec<OsText> = argv.iter().map(|word| word.as_str().into()).collect();
        let once = redactor().argv(&argv);
        prop_assert_eq!(redactor().argv(&once), once);
    }

    #[test]
    fn any_bytes_are_handled(bytes: Vec<u8>, word in fragments()) {
        let mixed = [&bytes[..], word.as_bytes(), &bytes[..]].concat();
        let once = redactor().bytes(&mixed).into_owned();
        let twice = redactor().bytes(&once).into_owned();
        prop_assert_eq!(twice, once);
    }
}

#[test]
fn markers_in_a_row_do_not_cost_the_square() {
    for piece in [
        "sk-",
        "token=(",
        "eyJ.",
        "curl ",
        "-----BEGIN ",
        "authorization:",
        "://a",
        "password=\"",
        "Q~",
        "PRIVATE KEY ",
        "cookie:",
        "authorization:{",
    ] {
        let text = piece.repeat(200_000 / piece.len());
        let start = Instant::now();
        drop(redactor().text(&text));
        let took = start.elapsed();
        assert!(took.as_secs() < 10, "{piece}: {took:?}");
    }
}
