//! All capabilities by name, with the types of their arguments hidden behind JSON.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;

use super::{Capability, Context, Failure, Invalid, Output, Plan, arguments};
use super::{
    file_delete, file_edit, file_list, file_read, file_write, git, kill, search, shell, undo,
};

/// A capability whose arguments are JSON.
pub trait AnyCapability: Send + Sync {
    /// What it is called.
    fn name(&self) -> &'static str;
    /// What it does.
    fn description(&self) -> &'static str;
    /// The JSON Schema of its arguments.
    fn schema(&self) -> Value;
    /// Whether the arguments are right, and how it would be carried out.
    fn check(&self, args: &Value) -> Result<Plan, Invalid>;
    /// Checks once more and carries it out, in a worker.
    fn execute(&self, args: &Value, context: &mut Context<'_>) -> Result<Output, Failure>;
}

impl<C: Capability> AnyCapability for C {
    fn name(&self) -> &'static str {
        C::NAME
    }

    fn description(&self) -> &'static str {
        C::DESCRIPTION
    }

    fn schema(&self) -> Value {
        schemars::schema_for!(C::Args).to_value()
    }

    fn check(&self, args: &Value) -> Result<Plan, Invalid> {
        let args = arguments::parse(args)?;
        self.validate(&args)?;
        Ok(self.plan(&args))
    }

    fn execute(&self, args: &Value, context: &mut Context<'_>) -> Result<Output, Failure> {
        let args = arguments::parse(args).map_err(|invalid| Failure::new(invalid.to_string()))?;
        self.validate(&args)
            .map_err(|invalid| Failure::new(invalid.to_string()))?;
        Capability::execute(self, args, context)
    }
}

/// All capabilities there are, sorted by name.
#[derive(Default)]
pub struct Registry(BTreeMap<&'static str, Box<dyn AnyCapability>>);

/// The name is taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there are two capabilities named `{0}`; give one another name")]
pub struct Duplicate(pub &'static str);

/// There is no capability of this name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unknown {
    /// What was asked for.
    pub name: String,
    /// The name that was perhaps meant.
    pub similar: Option<&'static str>,
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "there is no capability {:?}", self.name)?;
        match self.similar {
            Some(similar) => write!(f, "; did you mean `{similar}`?"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Unknown {}

impl Registry {
    /// Every capability of Invigil.
    pub fn standard() -> Self {
        let mut registry = Registry::empty();
        let registered = registry
            .register(file_delete::FileDelete)
            .and_then(|()| registry.register(file_edit::FileEdit))
            .and_then(|()| registry.register(file_list::FileList))
            .and_then(|()| registry.register(file_read::FileRead))
            .and_then(|()| registry.register(file_write::FileWrite))
            .and_then(|()| registry.register(git::Git))
            .and_then(|()| registry.register(kill::Kill))
            .and_then(|()| registry.register(search::Search))
            .and_then(|()| registry.register(shell::Shell))
            .and_then(|()| registry.register(undo::Undo));
        debug_assert_eq!(registered, Ok(()), "each name is used once");
        registry
    }

    /// Without any capability.
    pub fn empty() -> Self {
        Registry::default()
    }

    /// Adds a capability.
    pub fn register(&mut self, capability: impl Capability) -> Result<(), Duplicate> {
        let name = capability.name();
        if self.0.contains_key(name) {
            return Err(Duplicate(name));
        }
        self.0.insert(name, Box::new(capability));
        Ok(())
    }

    /// The capability of this name.
    pub fn get(&self, name: &str) -> Result<&dyn AnyCapability, Unknown> {
        self.0
            .get(name)
            .map(|found| &**found)
            .ok_or_else(|| Unknown {
                name: name.to_owned(),
                similar: self.nearest(name),
            })
    }

    /// All of them, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = &dyn AnyCapability> {
        self.0.values().map(|capability| &**capability)
    }

    fn nearest(&self, name: &str) -> Option<&'static str> {
        let near = |known: &&'static str| strsim::normalized_damerau_levenshtein(name, known);
        let known = self.0.keys().copied();
        known
            .max_by(|a, b| near(a).total_cmp(&near(b)))
            .filter(|known| near(known) >= 0.5)
    }
}
