//! Who writes contracts: any command, or a model behind one of two wire formats.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::control::Control;
use crate::held::{Bell, hold};
use crate::jobs::Cancel;
use crate::run::{End, Engine};
use crate::spec::{Leftovers, Output, RunSpec};

/// An answer is not read beyond this.
const LONGEST: u64 = 4 << 20;
/// A server may ask for this much patience and no more.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long it takes at most until a wait notices that nobody wants its end any more.
const GLANCE: Duration = Duration::from_millis(20);
const MAX_TOKENS: u32 = 4096;

/// How a model is spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Api {
    /// `POST URL/chat/completions`, as OpenAI and many others understand it.
    OpenAi,
    /// `POST URL/v1/messages`, as Anthropic understands it.
    Anthropic,
}

/// Somebody who answers prompts.
pub enum Generator {
    /// A command of the person's own: the prompt on its stdin, the answer on its stdout. It is recorded as a run.
    Command {
        /// What runs it.
        engine: Engine,
        /// For `sh -c`.
        command: String,
        /// How long an answer may take.
        timeout: Duration,
    },
    /// A model behind HTTP.
    Http(Box<Http>),
}

/// A model behind HTTP.
pub struct Http {
    agent: ureq::Agent,
    api: Api,
    url: String,
    model: String,
    key: Option<String>,
    /// How long the server wants to be left alone.
    pause: Option<Duration>,
}

/// There is no answer.
#[derive(Debug, thiserror::Error)]
pub enum GenerateError {
    /// The endpoint cannot be used.
    #[error(
        "{0:?} is no endpoint: it begins with https://, or with http:// and is on this machine"
    )]
    Url(String),
    /// The command.
    #[error("the command of the model failed: {0}")]
    Command(String),
    /// The way to the server.
    #[error("the server of the model did not answer: {0}")]
    Transport(String),
    /// The server said no.
    #[error("the server of the model says HTTP {status}: {text}")]
    Status {
        /// Its number.
        status: u16,
        /// What else it said, in short.
        text: String,
    },
    /// The answer is not in the format.
    #[error("the server of the model answered in another format: {0}")]
    Format(String),
    /// Nobody wants it any more.
    #[error("it was cancelled")]
    Cancelled,
}

/// What a server sent.
struct Sent {
    status: u16,
    /// How long it wants to be left alone.
    pause: Option<Duration>,
    text: Result<String, ureq::Error>,
}

impl Generator {
    /// A model at this address. The key is sent to it and to nobody else: no redirect is followed.
    pub fn http(
        api: Api,
        url: &str,
        model: &str,
        key: Option<String>,
        timeout: Duration,
    ) -> Result<Generator, GenerateError> {
        if !may_be_told_a_key(url) {
            return Err(GenerateError::Url(url.to_owned()));
        }
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(timeout))
            .http_status_as_error(false)
            .max_redirects(0)
            .build();
        let path = match api {
            Api::OpenAi => "/chat/completions",
            Api::Anthropic => "/v1/messages",
        };
        let url = url.trim_end_matches('/');
        let url = match url.ends_with(path) {
            true => url.to_owned(),
            false => format!("{url}{path}"),
        };
        Ok(Generator::Http(Box::new(Http {
            agent: config.into(),
            api,
            url,
            model: model.to_owned(),
            key,
            pause: None,
        })))
    }

    /// The answer to a prompt. Cancelling ends a command, and the wait for a server.
    pub fn generate(&mut self, prompt: &str, cancel: &Cancel) -> Result<String, GenerateError> {
        match self {
            Generator::Command {
                engine,
                command,
                timeout,
            } => by_command(engine, command, *timeout, prompt, cancel),
            Generator::Http(http) => http.ask(prompt, cancel),
        }
    }
}

/// Over the network only encrypted.
fn may_be_told_a_key(url: &str) -> bool {
    if url
        .strip_prefix("https://")
        .is_some_and(|rest| !rest.is_empty())
    {
        return true;
    }
    let Some(rest) = url.strip_prefix("http://") else {
        return false;
    };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host = match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next(),
        None => authority.split(':').next(),
    };
    !authority.contains('@') && matches!(host, Some("127.0.0.1" | "localhost" | "::1"))
}

fn by_command(
    engine: &Engine,
    command: &str,
    timeout: Duration,
    prompt: &str,
    cancel: &Cancel,
) -> Result<String, GenerateError> {
    let failed = |why: String| GenerateError::Command(why);
    let pipes = || -> io::Result<_> { Ok((io::pipe()?, io::pipe()?)) };
    let ((out, its_out), (err, its_err)) = pipes().map_err(|error| failed(error.to_string()))?;
    let spec = RunSpec {
        stdout: Output::Into {
            stdout: Arc::new(its_out.into()),
            stderr: Arc::new(its_err.into()),
        },
        leftovers: Leftovers::Kill,
        max_output: Some(LONGEST),
        ..RunSpec::new(["sh", "-c", command])
    };
    let read = || {
        thread::scope(|scope| {
            let err = scope.spawn(|| io::read_to_string(err).unwrap_or_default());
            let out = io::read_to_string(out);
            (out, err.join().unwrap_or_default())
        })
    };
    let (control, over) = (Control::new(), Bell::default());
    cancel.steers(&control);
    let held = hold(
        engine,
        spec,
        &control,
        prompt.as_bytes(),
        Some(timeout),
        &over,
        read,
    );
    let held = held.map_err(|error| failed(error.to_string()))?;
    if held.timed_out {
        return Err(failed(format!("no answer in {timeout:?}")));
    }
    let outcome = held.ran.map_err(|error| failed(error.to_string()))?;
    let Some((out, err)) = held.read else {
        return Err(failed("its output could not be read".to_owned()));
    };
    match outcome.end {
        End::NotStarted(why) => Err(failed(why.reason)),
        End::Finished(finished) if finished.success => {
            out.map_err(|error| failed(format!("its output is no text: {error}")))
        }
        End::Finished(finished) => {
            let how = match (finished.exit_code, finished.why) {
                (_, Some(why)) => why,
                (Some(code), None) => format!("exit {code}"),
                (None, None) => "ended by a signal".to_owned(),
            };
            let last = err.trim().lines().last().unwrap_or_default();
            Err(failed(format!("{how}: {}", brief(last))))
        }
    }
}

impl Http {
    fn ask(&mut self, prompt: &str, cancel: &Cancel) -> Result<String, GenerateError> {
        let rested = Instant::now() + self.pause.take().unwrap_or_default();
        while Instant::now() < rested && !cancel.is_cancelled() {
            thread::sleep(GLANCE);
        }
        let request = self.request(prompt);
        let (sender, sent) = sync_channel(1);
        // Whoever cancels does not wait for it. It ends by itself when its time is up.
        let asking = move || _ = sender.send(request());
        thread::Builder::new()
            .name("model".to_owned())
            .spawn(asking)
            .map_err(|error| GenerateError::Transport(error.to_string()))?;
        let sent = loop {
            if cancel.is_cancelled() {
                return Err(GenerateError::Cancelled);
            }
            match sent.recv_timeout(GLANCE) {
                Ok(sent) => break sent,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    let why = "its answer was lost".to_owned();
                    return Err(GenerateError::Transport(why));
                }
            }
        };
        // An error may quote the request; the key is in none of its parts that are shown.
        let transport = |error: ureq::Error| GenerateError::Transport(error.to_string());
        let Sent {
            status,
            pause,
            text,
        } = sent.map_err(transport)?;
        if status != 200 {
            self.pause = pause;
            let text = brief(&text.unwrap_or_default());
            return Err(GenerateError::Status { status, text });
        }
        self.answer(&text.map_err(transport)?)
    }

    /// Everything that it takes to ask once.
    fn request(&self, prompt: &str) -> impl FnOnce() -> Result<Sent, ureq::Error> + Send + 'static {
        let message = json!([{ "role": "user", "content": prompt }]);
        let mut request = self
            .agent
            .post(&self.url)
            .header("content-type", "application/json");
        let body = match self.api {
            Api::OpenAi => {
                if let Some(key) = &self.key {
                    request = request.header("authorization", format!("Bearer {key}"));
                }
                json!({ "model": self.model, "messages": message })
            }
            Api::Anthropic => {
                request = request.header("anthropic-version", "2023-06-01");
                if let Some(key) = &self.key {
                    request = request.header("x-api-key", key);
                }
                json!({ "model": self.model, "max_tokens": MAX_TOKENS, "messages": message })
            }
        };
        move || {
            let mut response = request.send(body.to_string())?;
            let pause = response.headers().get("retry-after").and_then(|value| {
                let seconds: u64 = value.to_str().ok()?.trim().parse().ok()?;
                Some(Duration::from_secs(seconds).min(PATIENCE))
            });
            let body = response.body_mut().with_config().limit(LONGEST);
            let text = body.read_to_string();
            Ok(Sent {
                status: response.status().as_u16(),
                pause,
                text,
            })
        }
    }

    /// The text in what the server sent.
    fn answer(&self, text: &str) -> Result<String, GenerateError> {
        let odd = || GenerateError::Format(brief(text));
        let answer: Value = serde_json::from_str(text).map_err(|_| odd())?;
        match self.api {
            Api::OpenAi => {
                let content = &answer["choices"][0]["message"]["content"];
                content.as_str().map(str::to_owned).ok_or_else(odd)
            }
            Api::Anthropic => {
                let blocks = answer["content"].as_array().ok_or_else(odd)?;
                let texts = blocks.iter().filter(|block| block["type"] == "text");
                let texts: Vec<&str> = texts.filter_map(|block| block["text"].as_str()).collect();
                match texts.is_empty() {
                    true => Err(odd()),
                    false => Ok(texts.concat()),
                }
            }
        }
    }
}

/// One line of what somebody said.
fn brief(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(200) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_go_out_encrypted_or_stay_here() {
        for good in [
            "https://api.example.com/v1",
            "http://127.0.0.1:8080/v1",
            "http://localhost",
            "http://[::1]:1",
        ] {
            assert!(may_be_told_a_key(good), "{good}");
        }
        for bad in [
            "http://example.com",
            "http://localhost.example.com",
            "http://127.0.0.1@example.com/",
            "http://127.0.0.1:x@example.com/",
            "ftp://x",
            "https://",
            "",
        ] {
            assert!(!may_be_told_a_key(bad), "{bad}");
        }
    }
}
