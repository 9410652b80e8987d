//! Jobs: one execution of a capability, and what is kept so that it can be undone.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, de};

use crate::{Digest, OsText, RunId};

/// Ids that are spelled like those of runs.
macro_rules! ids {
    ($($(#[$doc:meta])* $id:ident, $error:ident, $what:literal;)+) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        #[serde(transparent)]
        pub struct $id(String);

        /// The text is not such an id.
        #[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
        #[error(
            "{0:?} is not {what}: 1 to {max} ASCII letters, digits, '_' and '-', and not \"last\"",
            what = $what,
            max = RunId::MAX_LEN
        )]
        pub struct $error(String);

        impl $id {
            /// Checks a text.
            pub fn new(id: impl Into<String>) -> Result<Self, $error> {
                let id = id.into();
                match RunId::new(id.as_str()) {
                    Ok(_) => Ok($id(id)),
                    Err(_) => Err($error(id)),
                }
            }

            /// The id as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $id {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl FromStr for $id {
            type Err = $error;
            fn from_str(s: &str) -> Result<Self, Self::Err> {
                $id::new(s)
            }
        }

        impl<'de> Deserialize<'de> for $id {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                $id::new(String::deserialize(deserializer)?).map_err(de::Error::custom)
            }
        }

        impl JsonSchema for $id {
            fn schema_name() -> Cow<'static, str> {
                stringify!($id).into()
            }
            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({
                    "description": concat!("This is ", $what, "."),
                    "type": "string",
                    "pattern": "^[A-Za-z0-9_-]{1,128}$",
                    "not": { "const": RunId::LAST },
                })
            }
        }
    )+};
}

ids! {
    /// The id of a job, spelled like that of a run.
    JobId, JobIdError, "a job id";
    /// The id of a session, spelled like that of a run.
    SessionId, SessionIdError, "a session id";
    /// The id of a task, spelled like that of a run.
    TaskId, TaskIdError, "a task id";
}

/// One change of a job, announced before it was made. A job keeps each path once, in the order of its changes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Kept {
    /// Absolute, without links. For a git reference: the repository's folder and its name, as `…/.git/refs/heads/main`.
    pub path: OsText,
    /// What was there.
    pub before: Entry,
    /// What was to be there afterwards.
    pub after: Entry,
    /// For what git is asked to change in place of the file system: references and the index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repository: Option<Repository>,
}

/// A git repository, as far as undo needs to know it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Repository {
    /// Its folder, usually `.git`.
    pub git_dir: OsText,
    /// The work tree and the index, if they follow the reference: there, what is at the old commit becomes what is at
    /// the new one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work_tree: Option<OsText>,
}

/// What stands at a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Entry {
    /// Nothing.
    Absent,
    /// A regular file.
    File {
        /// Of its content, which is a blob if it had to be kept.
        sha256: Digest,
        /// In bytes.
        size: u64,
        /// The permission bits, with set-user-id, set-group-id and sticky.
        mode: u32,
        /// The owner.
        uid: u32,
        /// The group.
        gid: u32,
        /// Extended attributes: names and base64 of the values.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        xattrs: BTreeMap<String, String>,
    },
    /// A symbolic link.
    Symlink {
        /// Where it leads, word for word.
        target: OsText,
        /// The owner.
        uid: u32,
        /// The group.
        gid: u32,
    },
    /// A directory, without what is in it.
    Directory {
        /// The permission bits, with set-user-id, set-group-id and sticky.
        mode: u32,
        /// The owner.
        uid: u32,
        /// The group.
        gid: u32,
        /// Extended attributes: names and base64 of the values.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        xattrs: BTreeMap<String, String>,
    },
    /// The index of a git repository.
    Index {
        /// Of the file, which is a blob if it had to be kept.
        sha256: Digest,
        /// In bytes.
        size: u64,
        /// Of what it lists. What git notes of the files beside that may change at any time.
        listing: Digest,
    },
    /// A git reference.
    Reference {
        /// A commit, or `ref: ` and the name of another reference.
        target: String,
        /// The commit in the end.
        commit: Option<String>,
    },
}

impl Entry {
    /// The digest of the content, of what has one.
    pub fn sha256(&self) -> Option<&Digest> {
        match self {
            Entry::File { sha256, .. } | Entry::Index { sha256, .. } => Some(sha256),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_jobs_are_as_those_of_runs() {
        assert!(JobId::new("job_0193-X").is_ok());
        for bad in ["", "last", "a/b", "a:b", "é", &"a".repeat(129)] {
            let error = JobId::new(bad).unwrap_err();
            assert!(error.to_string().contains("is not a job id"), "{error}");
        }
    }

    #[test]
    fn what_is_kept_comes_back() {
        let kept = Kept {
            path: OsText::from(b"/tmp/a\xff".to_vec()),
            before: Entry::Absent,
            after: Entry::File {
                sha256: Digest::ZERO,
                size: 3,
                mode: 0o4755,
                uid: 0,
                gid: 7,
                xattrs: BTreeMap::from([("user.a".to_owned(), "YQ==".to_owned())]),
            },
            repository: None,
        };
        let json = serde_json::to_string(&kept).unwrap();
        assert!(json.contains(r#""before":{"type":"absent"}"#), "{json}");
        assert_eq!(serde_json::from_str::<Kept>(&json).unwrap(), kept);
    }
}
