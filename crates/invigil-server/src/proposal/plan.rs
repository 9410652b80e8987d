//! A proposal as a whole, before anything of it runs: ids, references, order.

use std::collections::HashMap;

use super::reference::each_id;
use super::wire::{Action, ActionKind, Proposal};
use crate::config::Limits;
use crate::rpc::{Answer, RpcError};

/// An action, and the places of those that it waits for.
#[derive(Debug, Clone)]
pub(crate) struct Planned {
    pub(crate) action: Action,
    pub(crate) needs: Vec<usize>,
}

/// Checks a proposal. What is wrong is named with its place.
pub(crate) fn plan(proposal: Proposal, limits: &Limits) -> Answer<Vec<Planned>> {
    let at = |n: usize, field: &str| format!("proposal.actions[{n}].{field}");
    if proposal.id.trim().is_empty() {
        return Err(RpcError::params("proposal.id", "it is empty"));
    }
    if proposal.id.len() > limits.string_bytes {
        return Err(RpcError::params("proposal.id", "it is too long"));
    }
    if proposal.actions.len() > limits.actions {
        let (found, most) = (proposal.actions.len(), limits.actions);
        let why = format!("the proposal has {found} actions, at most {most} are taken");
        return Err(RpcError::limit("actions", why));
    }
    let mut places: HashMap<&str, usize> = HashMap::new();
    for (n, action) in proposal.actions.iter().enumerate() {
        if action.id.trim().is_empty() {
            return Err(RpcError::params(&at(n, "id"), "it is empty"));
        }
        if places.insert(&action.id, n).is_some() {
            let why = format!("{:?} is the id of another action too", action.id);
            return Err(RpcError::params(&at(n, "id"), why));
        }
        check(action, &|field| at(n, field), limits)?;
    }
    let mut needs = Vec::with_capacity(proposal.actions.len());
    for (n, action) in proposal.actions.iter().enumerate() {
        let mut own = Vec::new();
        let mut missing = None;
        let mut need = |field: &'static str, id: &str| match places.get(id) {
            Some(place) => own.push(*place),
            None => missing = Some((field, id.to_owned())),
        };
        action
            .depends_on
            .iter()
            .for_each(|id| need("depends_on", id));
        let parameters = action.parameters.values();
        parameters.for_each(|value| each_id(value, &mut |id| need("parameters", id)));
        if let Some((field, id)) = missing {
            let why = format!("there is no action {id:?}");
            return Err(RpcError::params(&at(n, field), why));
        }
        own.sort_unstable();
        own.dedup();
        needs.push(own);
    }
    if let Some(n) = cycle(&needs) {
        let why = "it waits for itself, through others or at once";
        return Err(RpcError::params(&at(n, "depends_on"), why));
    }
    let planned = proposal.actions.into_iter().zip(needs);
    Ok(planned
        .map(|(action, needs)| Planned { action, needs })
        .collect())
}

fn check(action: &Action, at: &dyn Fn(&str) -> String, limits: &Limits) -> Answer<()> {
    let text = |key: &str| action.parameters.get(key).and_then(|value| value.as_str());
    match action.kind {
        ActionKind::ToolCall if action.tool.as_deref().is_none_or(str::is_empty) => {
            return Err(RpcError::params(&at("tool"), "a tool_call needs one"));
        }
        ActionKind::ToolCall => {}
        _ if text("key").is_none() => {
            return Err(RpcError::params(&at("parameters.key"), "it must be a text"));
        }
        _ => {}
    }
    let most = limits.action_ms_most;
    if action
        .timeout_ms
        .is_some_and(|timeout| timeout == 0 || timeout > most)
    {
        let why = format!("it must be from 1 to {most}");
        return Err(RpcError::params(&at("timeout_ms"), why));
    }
    if action.max_retries.is_some_and(|retries| retries > 100) {
        return Err(RpcError::params(
            &at("max_retries"),
            "it must be at most 100",
        ));
    }
    Ok(())
}

/// An action that can never begin: what is left when all are taken whose needs are taken.
fn cycle(needs: &[Vec<usize>]) -> Option<usize> {
    let mut left: Vec<usize> = needs.iter().map(Vec::len).collect();
    let mut needed_by = vec![Vec::new(); needs.len()];
    for (n, needs) in needs.iter().enumerate() {
        needs.iter().for_each(|need| needed_by[*need].push(n));
    }
    let mut ready: Vec<usize> = (0..needs.len()).filter(|n| left[*n] == 0).collect();
    let mut taken = 0;
    while let Some(n) = ready.pop() {
        taken += 1;
        for other in &needed_by[n] {
            left[*other] -= 1;
            if left[*other] == 0 {
                ready.push(*other);
            }
        }
    }
    (taken < needs.len()).then(|| left.iter().position(|left| *left > 0))?
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn planned(actions: Value) -> Answer<Vec<Vec<usize>>> {
        let proposal = json!({ "id": "p", "source": "test", "actions": actions });
        let proposal = serde_json::from_value(proposal).unwrap();
        let plan = plan(proposal, &Limits::default())?;
        Ok(plan.into_iter().map(|planned| planned.needs).collect())
    }

    fn field(actions: Value) -> String {
        let error = planned(actions).unwrap_err();
        assert_eq!(error.code, -32602);
        error.data.unwrap()["field"].as_str().unwrap().to_owned()
    }

    #[test]
    fn what_an_action_waits_for() {
        let needs = planned(json!([
            { "id": "c", "tool": "t", "depends_on": ["a"], "parameters": { "x": ["${b.output}", "${a.output}"] } },
            { "id": "a", "tool": "t" },
            { "id": "b", "tool": "t", "parameters": { "x": "${HOME}" } },
        ]));
        assert_eq!(needs.unwrap(), [vec![1, 2], vec![], vec![]]);
        assert_eq!(planned(json!([])).unwrap(), Vec::<Vec<usize>>::new());
    }

    #[test]
    fn what_can_never_run_is_refused() {
        let twice = json!([{ "id": "a", "tool": "t" }, { "id": "a", "tool": "t" }]);
        assert_eq!(field(twice), "proposal.actions[1].id");
        let unknown = json!([{ "id": "a", "tool": "t", "depends_on": ["b"] }]);
        assert_eq!(field(unknown), "proposal.actions[0].depends_on");
        let unknown = json!([{ "id": "a", "tool": "t", "parameters": { "x": "${b.output.y}" } }]);
        assert_eq!(field(unknown), "proposal.actions[0].parameters");
        let itself = json!([{ "id": "a", "tool": "t", "parameters": { "x": "${a.output}" } }]);
        assert_eq!(field(itself), "proposal.actions[0].depends_on");
        let circle = json!([
            { "id": "a", "tool": "t" },
            { "id": "b", "tool": "t", "depends_on": ["c"] },
            { "id": "c", "tool": "t", "depends_on": ["b"] },
        ]);
        assert_eq!(field(circle), "proposal.actions[1].depends_on");
        assert_eq!(
            field(json!([{ "id": " ", "tool": "t" }])),
            "proposal.actions[0].id"
        );
        assert_eq!(field(json!([{ "id": "a" }])), "proposal.actions[0].tool");
        let state = json!([{ "id": "a", "type": "state_read" }]);
        assert_eq!(field(state), "proposal.actions[0].parameters.key");
    }
}
