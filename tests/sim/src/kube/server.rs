//! The verbs: the effect of a call on the API server, and its answer.

use super::Body;
use super::delete::{DeleteOptions, EvictionBody};
use super::event;
use super::object::{Form, Object};
use super::patch::{self, Kind};
use super::refusal::{Refusal, overloaded, respond, success};
use super::route::{Call, Resource, Target, Verb};
use super::select::Scope;
use super::state::{Shared, State};
use super::store::Key;
use super::watch;
use crate::fault::Fault;
use http::Response;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// A success: the status, and the body.
type Answer = Result<(u16, Vec<u8>), Refusal>;

/// Returns the answer to a call that meets a fault; `None` if that fault does not apply to this call.
pub(super) fn refuse(call: &Call, fault: Fault) -> Option<Response<Body>> {
    let watches = call.verb == Verb::Watch;
    match fault {
        Fault::Throttle => Some(overloaded(1)),
        Fault::ThrottleFor(seconds) => Some(overloaded(seconds)),
        Fault::Status(code) => Some(Refusal::new(code, format!("simulated failure of {}", call.operation)).response()),
        Fault::Refuse(code, message) => Some(Refusal::new(code, message).response()),
        Fault::CloseWatch => watches.then(watch::closed),
        Fault::ExpireWatch => watches.then(|| watch::failed(&Refusal::expired(1, 2))),
        _ => None,
    }
}

/// Serves a call.
pub(super) fn answer(shared: &Arc<Shared>, call: &Call) -> Response<Body> {
    shared.tick();
    let Target::Resource { resource, namespace, name, sub } = &call.target else {
        return plain(shared, call);
    };
    if call.verb == Verb::Watch {
        return watch::start(shared, call);
    }
    let at = At { resource: *resource, key: Key::new(namespace, name.as_deref().unwrap_or_default()) };
    let mut state = shared.lock();
    let answer = match (call.verb, sub.as_deref()) {
        _ if state.denied.contains(&call.operation) => {
            Err(Refusal::new(403, format!("not allowed to {}", call.operation)))
        }
        _ if at.resource == Resource::Bindings && state.store.all(at.resource).next().is_none() => {
            Err(Refusal::no_such_path())
        }
        (Verb::Get, None | Some("status")) => get(&state, call, &at),
        (Verb::List, None) => list(&mut state, call),
        (Verb::Create, Some("eviction")) if at.resource == Resource::Pods => evict(&mut state, call, &at),
        (Verb::Create, None) if at.is_written_by_clients() => create(&mut state, call, &at),
        (Verb::Update, None) if at.is_written_by_clients() => update(&mut state, call, &at),
        (Verb::Patch, None | Some("status")) if at.resource != Resource::Budgets => {
            patch(&mut state, call, &at, sub.is_some())
        }
        (Verb::Delete, None) if at.resource != Resource::Budgets => delete(&mut state, call, &at),
        (_, None | Some("status" | "eviction")) => Err(Refusal::not_allowed()),
        _ => Err(Refusal::no_such_path()),
    };
    drop(state);
    match answer {
        Ok((code, body)) => respond(code, body),
        Err(refusal) => refusal.response(),
    }
}

/// Key of one object, existing or to be created.
struct At {
    resource: Resource,
    key: Key,
}

impl At {
    /// Nodes, pods and budgets are not created through the API here.
    fn is_written_by_clients(&self) -> bool {
        matches!(self.resource, Resource::Events | Resource::Leases)
    }

    fn find<'a>(&self, state: &'a State) -> Result<&'a Arc<Object>, Refusal> {
        let missing = || Refusal::not_found(self.resource, &self.key.name);
        state.store.get(self.resource, &self.key).ok_or_else(missing)
    }

    fn show(&self, code: u16, object: &Object, form: Form) -> Answer {
        let mut body = Vec::new();
        object.write(&mut body, self.resource, form);
        Ok((code, body))
    }
}

/// Serves the paths that are not resources.
fn plain(shared: &Arc<Shared>, call: &Call) -> Response<Body> {
    match call.path.as_str() {
        "/healthz" | "/livez" | "/readyz" => respond(200, "ok"),
        "/version" => respond(
            200,
            json!({
                "major": "1", "minor": "33", "gitVersion": "v1.33.5", "gitCommit": "", "gitTreeState": "clean",
                "buildDate": "2026-01-01T00:00:00Z", "goVersion": "go1.24", "compiler": "gc",
                "platform": "linux/amd64",
            })
            .to_string(),
        ),
        "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews" if call.verb == Verb::Create => {
            let mut review: Value = serde_json::from_slice(&call.body).unwrap_or_default();
            let asked = &review["spec"]["resourceAttributes"];
            let text = |key: &str| asked[key].as_str().unwrap_or_default();
            let sub = text("subresource");
            let resource =
                if sub.is_empty() { text("resource").to_owned() } else { format!("{}/{sub}", text("resource")) };
            let denied = shared.lock().denied.contains(&format!("{} {resource}", text("verb")));
            review["status"] = json!({ "allowed": !denied });
            respond(201, review.to_string())
        }
        "/apis/authentication.k8s.io/v1/selfsubjectreviews" if call.verb == Verb::Create => {
            let mut review: Value = serde_json::from_slice(&call.body).unwrap_or_default();
            review["status"] = json!({ "userInfo": { "username": "system:serviceaccount:ebbtide:ebbtide" } });
            respond(201, review.to_string())
        }
        _ => Refusal::no_such_path().response(),
    }
}

fn body<T: DeserializeOwned + Default>(call: &Call) -> Result<T, Refusal> {
    if call.body.is_empty() {
        return Ok(T::default());
    }
    serde_json::from_slice(&call.body).map_err(|error| Refusal::new(400, format!("the body is not valid: {error}")))
}

fn get(state: &State, call: &Call, at: &At) -> Answer {
    at.show(200, at.find(state)?, call.form)
}

fn list(state: &mut State, call: &Call) -> Answer {
    let scope = Scope::of(call)?;
    let current = state.store.version();
    let asked = call.asked("resourceVersion");
    if state.behind && asked.is_none() {
        let why = "the list operation could not be completed at this time, please try again";
        return Err(Refusal::new(500, why));
    }
    if let Some(version) = asked {
        let version: u64 =
            version.parse().map_err(|_| Refusal::new(400, format!("invalid resource version {version:?}")))?;
        if version > current {
            return Err(Refusal::too_new(version, current));
        }
        if call.asked("resourceVersionMatch") == Some("Exact") && version != current {
            return Err(Refusal::expired(version, current));
        }
    }
    let (version, mut items) = match call.asked("continue") {
        Some(token) => state.store.rest_of(token).ok_or_else(Refusal::list_expired)?,
        None => match state.cache.filter(|_| asked == Some("0")) {
            Some(version) => (version, scope.objects_at(&state.store, version)),
            None => (current, scope.objects(&state.store)),
        },
    };
    // A list from the server's cache is not split into pages.
    let limit = call.asked("limit").and_then(|limit| limit.parse().ok()).filter(|&limit| limit > 0);
    let limit: usize = limit.filter(|_| asked != Some("0")).unwrap_or(usize::MAX);
    let mut meta = json!({ "resourceVersion": version.to_string() });
    if items.len() > limit {
        let rest = items.split_off(limit);
        if !scope.selects() {
            meta["remainingItemCount"] = json!(rest.len());
        }
        meta["continue"] = json!(state.store.keep_rest(version, rest));
    }
    let (kind, api_version) = match call.form {
        Form::Full => (scope.resource.kind(), scope.resource.api_version()),
        Form::Partial => ("PartialObjectMetadata", "meta.k8s.io/v1".to_owned()),
        Form::EventsV1 => (scope.resource.kind(), "events.k8s.io/v1".to_owned()),
    };
    let mut text =
        format!(r#"{{"kind":"{kind}List","apiVersion":"{api_version}","metadata":{meta},"items":["#).into_bytes();
    for (number, object) in items.iter().enumerate() {
        if number > 0 {
            text.push(b',');
        }
        object.write(&mut text, scope.resource, call.form);
    }
    text.extend_from_slice(b"]}");
    Ok((200, text))
}

fn evict(state: &mut State, call: &Call, at: &At) -> Answer {
    let options = body::<EvictionBody>(call)?.options(&at.key.name)?.or_dry_run(call.is_dry_run());
    state.evict(&at.key, &options)?;
    Ok((201, success(201).to_string().into_bytes()))
}

fn delete(state: &mut State, call: &Call, at: &At) -> Answer {
    let options = body::<DeleteOptions>(call)?.or_dry_run(call.is_dry_run());
    if at.resource == Resource::Pods {
        let pod = state.delete_pod(&at.key, &options)?;
        return at.show(200, &pod, call.form);
    }
    let object = Arc::clone(at.find(state)?);
    options.check(at.resource, &object)?;
    if object.meta.finalizers.as_ref().is_some_and(|finalizers| !finalizers.is_empty()) {
        let now = Time(state.clock.now());
        let ending = object.with_meta(|meta| {
            meta.deletion_timestamp.get_or_insert(now);
        });
        let ending = if options.is_dry_run() { Arc::new(ending) } else { state.put(at.resource, ending) };
        return at.show(200, &ending, call.form);
    }
    if !options.is_dry_run() {
        state.remove(at.resource, &at.key);
        if at.resource == Resource::Nodes {
            state.orphan(&at.key.name);
        }
    }
    let mut status = success(200);
    status["details"] = json!({ "name": object.name(), "kind": at.resource.plural(), "uid": object.uid() });
    Ok((200, status.to_string().into_bytes()))
}

/// Parses the object in a body into its stored format, and adds the namespace and name from the path.
fn object_of(call: &Call, at: &At) -> Result<Map<String, Value>, Refusal> {
    let mut object: Map<String, Value> = body(call)?;
    if call.form == Form::EventsV1 {
        object = event::from_events_v1(object);
    }
    let meta = object.entry("metadata").or_insert_with(|| json!({}));
    let namespace = meta["namespace"].as_str().unwrap_or_default();
    if !namespace.is_empty() && namespace != at.key.namespace {
        let why = "the namespace of the provided object does not match the namespace sent on the request";
        return Err(Refusal::new(400, why));
    }
    meta["namespace"] = json!(at.key.namespace);
    Ok(object)
}

fn parsed(resource: Resource, object: Map<String, Value>) -> Result<Object, Refusal> {
    Object::from_value(resource, object).map_err(|error| Refusal::new(400, format!("the body is not valid: {error}")))
}

fn create(state: &mut State, call: &Call, at: &At) -> Answer {
    let mut object = object_of(call, at)?;
    let meta = &mut object["metadata"];
    let named = meta["name"].as_str().unwrap_or_default();
    let base = meta["generateName"].as_str().unwrap_or_default();
    let name = match (named, base) {
        ("", "") => return Err(Refusal::invalid(at.resource, "", "metadata.name", "Required value")),
        ("", base) => format!("{base}{}", state.suffix()),
        (named, _) => named.to_owned(),
    };
    meta["name"] = json!(name);
    if state.terminating.contains(&at.key.namespace) {
        return Err(Refusal::namespace_terminating(at.resource, &name, &at.key.namespace));
    }
    if at.resource == Resource::Events {
        event::check(&object, &at.key.namespace, call.form == Form::EventsV1)?;
    }
    let (uid, now) = (state.uuid(), state.clock.now());
    let object = parsed(at.resource, object)?.with_meta(|meta| {
        meta.uid = Some(uid);
        meta.creation_timestamp = Some(Time(now));
        meta.resource_version = None;
    });
    if state.store.get(at.resource, &object.key()).is_some() {
        return Err(Refusal::already_exists(at.resource, &name));
    }
    let object = if call.is_dry_run() { Arc::new(object) } else { state.put(at.resource, object) };
    at.show(201, &object, call.form)
}

fn update(state: &mut State, call: &Call, at: &At) -> Answer {
    let object = parsed(at.resource, object_of(call, at)?)?;
    if object.name() != at.key.name {
        return Err(Refusal::new(400, "the name of the object does not match the name on the URL"));
    }
    let old = match at.find(state) {
        Ok(old) => Arc::clone(old),
        // An update can create a Lease, too.
        Err(_) if at.resource == Resource::Leases => return create(state, call, at),
        Err(missing) => return Err(missing),
    };
    match object.meta.resource_version.as_deref().unwrap_or_default() {
        "" => {
            let why = "Invalid value: 0x0: must be specified for an update";
            return Err(Refusal::invalid(at.resource, &at.key.name, "metadata.resourceVersion", why));
        }
        version if version != old.version.to_string() => return Err(Refusal::stale(at.resource, &at.key.name)),
        _ => {}
    }
    if !object.uid().is_empty() && object.uid() != old.uid() {
        let why =
            format!("Precondition failed: UID in precondition: {}, UID in object meta: {}", object.uid(), old.uid());
        return Err(Refusal::conflict(at.resource, &at.key.name, &why));
    }
    finish(state, call, at, &old, object)
}

fn patch(state: &mut State, call: &Call, at: &At, is_status: bool) -> Answer {
    let kind = Kind::of(&call.content_type).ok_or_else(|| {
        let why = "the body of the request was in an unknown format - accepted media types include: \
                   application/merge-patch+json, application/strategic-merge-patch+json";
        Refusal::new(415, why)
    })?;
    if at.resource == Resource::Nodes && !is_status {
        state.rival_writes(&at.key);
    }
    let old = Arc::clone(at.find(state)?);
    let mut patch: Map<String, Value> = body(call)?;
    if call.form == Form::EventsV1 {
        patch = event::from_events_v1(patch);
    }
    // The path determines these fields; clients send them because their types do.
    for fixed in ["apiVersion", "kind"] {
        patch.remove(fixed);
    }
    let asked = patch.get_mut("metadata").and_then(Value::as_object_mut);
    let asked = asked.and_then(|meta| meta.remove("resourceVersion"));
    if asked.as_ref().and_then(Value::as_str).is_some_and(|version| version != old.version.to_string()) {
        return Err(Refusal::stale(at.resource, &at.key.name));
    }
    // An object's spec and status are written under different paths.
    if matches!(at.resource, Resource::Nodes | Resource::Pods | Resource::Deployments) {
        patch.remove(if is_status { "spec" } else { "status" });
    }
    let mut object = old.value(at.resource);
    patch::apply(kind, &mut object, patch);
    let object = parsed(at.resource, object)?;
    // A UID in a patch is a precondition: a patch has no other way to name one.
    if object.uid() != old.uid() {
        let why = format!("Invalid value: \"{}\": field is immutable", object.uid());
        return Err(Refusal::invalid(at.resource, &at.key.name, "metadata.uid", &why));
    }
    finish(state, call, at, &old, object)
}

/// Maximum size of all annotations of an object: `TotalAnnotationSizeLimitB` of Kubernetes' validation.
const MAX_ANNOTATIONS: usize = 256 * 1024;

/// Replaces an existing object; fields that only the server sets stay.
fn finish(state: &mut State, call: &Call, at: &At, old: &Object, object: Object) -> Answer {
    let annotations = object.meta.annotations.iter().flatten();
    if annotations.map(|(key, value)| key.len() + value.len()).sum::<usize>() > MAX_ANNOTATIONS {
        let why = "Too long: may not be more than 262144 bytes";
        return Err(Refusal::invalid(at.resource, &at.key.name, "metadata.annotations", why));
    }
    let object = object.with_meta(|meta| {
        meta.name.clone_from(&old.meta.name);
        meta.namespace.clone_from(&old.meta.namespace);
        meta.uid.clone_from(&old.meta.uid);
        meta.creation_timestamp.clone_from(&old.meta.creation_timestamp);
        meta.deletion_timestamp.clone_from(&old.meta.deletion_timestamp);
        meta.deletion_grace_period_seconds = old.meta.deletion_grace_period_seconds;
        meta.resource_version.clone_from(&old.meta.resource_version);
        meta.generation = old.meta.generation;
    });
    let is_new = at.resource == Resource::Deployments && object.field("spec") != old.field("spec");
    let object = object.with_meta(|meta| meta.generation = meta.generation.map(|known| known + i64::from(is_new)));
    let object = if call.is_dry_run() { Arc::new(object) } else { state.put(at.resource, object) };
    at.show(200, &object, call.form)
}
