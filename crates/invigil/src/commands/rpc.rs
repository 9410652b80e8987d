//! `invigil rpc`: one request to the daemon.

use std::fs;
use std::io::Write as _;

use invigil_journal::Store;
use invigil_server::{Client, ClientError, Endpoint, Places};
use serde_json::{Value, json};

use crate::error::CliError;

/// Send one request to the daemon of this store and print its answer
#[derive(Debug, clap::Args)]
pub(crate) struct Rpc {
    /// Show the operator's token: see everything, answer questions
    #[arg(long)]
    operator: bool,

    /// Over TCP, at this address, in place of the Unix socket
    #[arg(long, value_name = "ADDRESS")]
    tcp: Option<String>,

    /// The method, such as runs.list; rpc.discover describes all
    method: String,

    /// Its parameters
    #[arg(default_value = "{}")]
    params: String,

    /// Speak for this agent
    #[arg(long, value_name = "ID")]
    agent: Option<String>,

    /// Go on and print what the daemon sends, one JSON object a line
    #[arg(long)]
    follow: bool,
}

impl Rpc {
    pub(crate) fn execute(self, store: &Store) -> Result<u8, CliError> {
        let params: Value = serde_json::from_str(&self.params).map_err(CliError::NotJson)?;
        let places = Places::of(store.home());
        let endpoint = match &self.tcp {
            Some(address) => Endpoint::Tcp(address.clone()),
            None => Endpoint::Unix(places.socket()),
        };
        let mut client = Client::connect(&endpoint).map_err(|source| CliError::NoDaemon {
            home: store.home().to_owned(),
            source,
        })?;
        let token = match (self.operator, &self.tcp) {
            (true, _) => Some(places.operator_token()),
            (false, Some(_)) => Some(places.token()),
            (false, None) => None,
        };
        let token = token.map(|path| {
            let token = fs::read_to_string(&path);
            token.map_err(|source| CliError::Token { path, source })
        });
        let auth = json!({ "token": token.transpose()?, "agent_id": self.agent });
        client.call("session.auth", &auth)?;
        let mut out = anstream::stdout();
        let answer = match client.call(&self.method, &params) {
            Err(ClientError::Refused(error)) => {
                let error = serde_json::to_value(&error).unwrap_or_default();
                writeln!(out, "{error:#}")?;
                return Ok(1);
            }
            answer => answer?,
        };
        if !self.follow {
            writeln!(out, "{answer:#}")?;
            return Ok(0);
        }
        writeln!(out, "{answer}")?;
        loop {
            match client.receive(std::time::Duration::from_secs(3600)) {
                Ok(message) => writeln!(out, "{message}")?,
                Err(ClientError::Timeout) => {}
                Err(ClientError::Closed) => return Ok(0),
                Err(error) => return Err(error.into()),
            }
        }
    }
}
