//! Resources listed and read, each by calls of the tools that tell the same.

use std::collections::BTreeSet;
use std::rc::Rc;

use serde_json::{Map, Value, json};

use super::envelope::{Asked, Fault, INVALID_PARAMS};
use super::headers::Era;
use super::resources::{self, LOG_PART, LONGEST_FILE, Log, MOST_ENTRIES, PAGE, Place};
use super::uris::{self, Resource};
use crate::api::rest::{Door, Shared};
use crate::call::{CallHead, Reply, ToolCall};
use crate::error::{Error, ErrorCode, Result};
use crate::workers::platform::uuid;

/// Answers of getJobLogs that one log is put together from: many small pieces fill an answer too.
const MOST_PARTS: u32 = 16;

/// A part of a request about resources.
pub(super) struct Reading<'a> {
    pub(super) door: &'a Door,
    pub(super) shared: Rc<Shared>,
    pub(super) head: CallHead,
    pub(super) era: Era,
}

impl Reading<'_> {
    /// `resources/list`, `resources/templates/list`, `resources/read`. The outer error is a caller that is none.
    pub(super) async fn answer(&mut self, asked: &Asked) -> Result<Result<Value, Fault>> {
        let uri = asked.params.get("uri").and_then(Value::as_str);
        let told = match asked.method.as_str() {
            "resources/list" => match cursor(&asked.params).map(Place::parse) {
                Ok(Some(place)) => self.list(place).await,
                _ => return Ok(Err(Fault::new(200, INVALID_PARAMS, "cursor: is none that a page gave out"))),
            },
            "resources/templates/list" => match cursor(&asked.params) {
                Ok(None) => {
                    self.callable().await.map(|tools| resources::templates(self.era, |tool| tools.contains(tool)))
                }
                _ => {
                    let message = "cursor: the list has one page, and no cursor was given out";
                    return Ok(Err(Fault::new(200, INVALID_PARAMS, message)));
                }
            },
            _ => match uri {
                Some(uri) => self.read(uri).await,
                None => {
                    let message = "params.uri must be a string, the address of a resource";
                    return Ok(Err(Fault::new(200, INVALID_PARAMS, message)));
                }
            },
        };
        match told {
            Ok(told) => Ok(Ok(told)),
            Err(error) if error.code == ErrorCode::Unauthenticated => Err(error),
            Err(error) => Ok(Err(resources::fault(&error, uri, self.era, &self.door.request_id))),
        }
    }

    /// Names of the tools that the caller may call.
    async fn callable(&self) -> Result<BTreeSet<String>> {
        let described = self.door.described(&self.shared, &self.head).await?;
        let tools = described.get("tools").and_then(Value::as_array).into_iter().flatten();
        Ok(tools.filter_map(|tool| tool.get("name")?.as_str().map(str::to_owned)).collect())
    }

    async fn list(&mut self, place: Place) -> Result<Value> {
        let callable = self.callable().await?;
        let may = |tools: &[&str]| tools.iter().all(|tool| callable.contains(*tool));
        let reads_jobs = may(&["listJobs", "getJobLogs"]);
        let mut told = Vec::new();
        let jobs = match place {
            Place::Sandboxes(after) if may(&["listSandboxes", "listFiles"]) => {
                let page = self.page("listSandboxes", after).await?;
                told.extend(page.entries("sandboxes").map(resources::of_sandbox));
                if page.next.is_some() {
                    return Ok(resources::listed(self.era, told, Some(Place::Sandboxes(page.next))));
                }
                None
            }
            Place::Sandboxes(_) => None,
            Place::Jobs(after) => after,
        };
        let next = if reads_jobs {
            let page = self.page("listJobs", jobs).await?;
            told.extend(page.entries("jobs").filter_map(|job| resources::of_job(job, |tool| callable.contains(tool))));
            page.next.map(|next| Place::Jobs(Some(next)))
        } else {
            None
        };
        Ok(resources::listed(self.era, told, next))
    }

    async fn page(&mut self, tool: &str, cursor: Option<String>) -> Result<Page> {
        let mut arguments = json!({ "limit": PAGE });
        if let (Some(cursor), Some(fields)) = (cursor, arguments.as_object_mut()) {
            fields.insert("cursor".to_owned(), cursor.into());
        }
        let output = self.call(tool, arguments).await?;
        let next = output.get("nextCursor").and_then(Value::as_str).map(str::to_owned);
        Ok(Page { output, next })
    }

    async fn read(&mut self, uri: &str) -> Result<Value> {
        let contents = match uris::parse(uri) {
            Some(Resource::File { sandbox_id, path }) => self.file(uri, &sandbox_id, &path).await?,
            Some(Resource::Directory { sandbox_id, path }) => self.directory(uri, &sandbox_id, &path).await?,
            Some(Resource::Log { job_id }) => self.log(uri, &job_id).await?,
            None => return Err(resources::no_such(uri)),
        };
        Ok(resources::read(self.era, contents))
    }

    async fn file(&mut self, uri: &str, sandbox_id: &str, path: &str) -> Result<Value> {
        let arguments =
            json!({ "sandboxId": sandbox_id, "path": path, "pathEncoding": "percent", "limit": LONGEST_FILE });
        match self.call("readFile", arguments).await {
            Ok(output) => resources::file(uri, path, &output),
            // Who fills in a template may name a directory without its slash. What is neither is told of as the file that it was read as.
            Err(error) if is_of_another_type(&error) => match self.directory(uri, sandbox_id, path).await {
                Err(listed) if is_of_another_type(&listed) => Err(error),
                listed => listed,
            },
            Err(error) => Err(error),
        }
    }

    async fn directory(&mut self, uri: &str, sandbox_id: &str, path: &str) -> Result<Value> {
        let arguments =
            json!({ "sandboxId": sandbox_id, "path": path, "pathEncoding": "percent", "limit": MOST_ENTRIES });
        let output = self.call("listFiles", arguments).await?;
        Ok(resources::directory(uri, sandbox_id, &output))
    }

    async fn log(&mut self, uri: &str, job_id: &str) -> Result<Value> {
        let mut log = Log::default();
        for _ in 0..MOST_PARTS {
            let arguments = json!({ "jobId": job_id, "offset": log.next_offset, "limit": LOG_PART });
            let output = self.call("getJobLogs", arguments).await?;
            if !log.push(&output)? {
                break;
            }
        }
        Ok(log.contents(uri))
    }

    /// One call, as any other. The first has the id of the request, and every other one of its own.
    async fn call(&mut self, tool: &str, arguments: Value) -> Result<Value> {
        let head = self.head.clone();
        self.head.id = uuid();
        let call = ToolCall { head, tool: tool.to_owned(), arguments: Ok(arguments) };
        let (backend, shared) = (self.door.backend.clone(), self.shared.clone());
        let work = async move { shared.registry.call_at_once(&*backend, call).await };
        match self.door.note(self.door.to_its_end(work).await?)? {
            Reply::Output(output) => Ok(output),
            Reply::Job(_) => Err(Error::internal("what is read at once became a job")),
        }
    }
}

/// Whether the path is of something else than what the tool reads.
fn is_of_another_type(error: &Error) -> bool {
    error.details.get("reason").is_some_and(|reason| reason == "wrong_file_type")
}

/// One page of a listing tool.
struct Page {
    output: Value,
    next: Option<String>,
}

impl Page {
    fn entries<'a>(&'a self, field: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
        self.output.get(field).and_then(Value::as_array).into_iter().flatten()
    }
}

/// The cursor, where one is given that may be one.
fn cursor(params: &Map<String, Value>) -> Result<Option<&str>, ()> {
    match params.get("cursor") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(cursor)) => Ok(Some(cursor)),
        Some(_) => Err(()),
    }
}
