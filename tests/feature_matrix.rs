//! Holds the documents against the code: FEATURE_MATRIX.md against the registry, the API description and the tests;
//! docs/errors.md against the code table; docs/architecture.md's deadlines against their constants; README.md against the
//! registry. What fails names the line and what to mend there.
//!
//! Leaves out prose: whether a sentence is true is for its reader.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that cannot go on fails there"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use cloudflare_ops::error::{Error, ErrorCode};
use cloudflare_ops::tools::registry;
use serde_json::Value;

const MATRIX: &str = "FEATURE_MATRIX.md";
const ERRORS: &str = "docs/errors.md";
const ARCHITECTURE: &str = "docs/architecture.md";
const README: &str = "README.md";

const NOT_BUILT: &str = "not built";
const NEVER_RUN: &str = "never run on Cloudflare";
const STATES: [&str; 4] = ["tested locally", "tested in container", NEVER_RUN, NOT_BUILT];

const METHODS: [&str; 6] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Fails with everything that was found, once.
fn nothing(faults: &[String]) {
    assert!(faults.is_empty(), "{} to mend:\n{}", faults.len(), faults.join("\n"));
}

/// Rows of every table that has this header, with their line numbers.
fn tables(document: &str, header: &str) -> Vec<(usize, Vec<String>)> {
    let text = read(document);
    let mut rows = Vec::new();
    let mut inside = false;
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line == header {
            inside = true;
        } else if !line.starts_with('|') {
            inside = false;
        } else if inside && !line.starts_with("|---") {
            let cells = line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect();
            rows.push((index + 1, cells));
        }
    }
    assert!(!rows.is_empty(), "{document} has no table with the header {header:?}");
    rows
}

/// What stands between backticks.
fn code(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

/// One feature.
struct Row {
    line: usize,
    feature: String,
    state: String,
    tests: Vec<String>,
    /// Named by a row that begins with `Tool`.
    tool: Option<String>,
}

impl Row {
    fn built(&self) -> bool {
        self.state != NOT_BUILT
    }

    /// Routes in the feature's text: with a method, or bare.
    fn routes(&self) -> Vec<(Option<&str>, &str)> {
        let routes = code(&self.feature).into_iter().map(|text| match text.split_once(' ') {
            Some((method, path)) if METHODS.contains(&method) => (Some(method), path),
            _ => (None, text),
        });
        routes.filter(|(_, path)| path.starts_with('/')).collect()
    }
}

fn matrix() -> Vec<Row> {
    let rows = tables(MATRIX, "| Feature | Elsewhere | State here | Its test |");
    let row = |(line, cells): (usize, Vec<String>)| {
        let [feature, _, state, tests]: [String; 4] =
            cells.try_into().unwrap_or_else(|cells| panic!("{MATRIX}:{line}: not four cells: {cells:?}"));
        let tool =
            feature.starts_with("Tool ").then(|| code(&feature).first().map(|name| (*name).to_owned())).flatten();
        let tests = code(&tests).into_iter().map(str::to_owned).collect();
        Row { line, feature, state, tests, tool }
    };
    rows.into_iter().map(row).collect()
}

fn openapi() -> Value {
    serde_json::from_str(&read("openapi/openapi.json")).unwrap()
}

/// Method and path of every operation, parameters without their names, and the ids.
fn operations() -> BTreeMap<(String, String), String> {
    let mut found = BTreeMap::new();
    for (path, item) in openapi()["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            if let Some(id) = operation["operationId"].as_str() {
                found.insert((method.to_uppercase(), unnamed(path)), id.to_owned());
            }
        }
    }
    found
}

/// A path whose parameters have lost their names.
fn unnamed(path: &str) -> String {
    let parts = path.split('/').map(|part| if part.starts_with('{') { "{}" } else { part });
    parts.collect::<Vec<_>>().join("/")
}

#[test]
fn the_matrix_says_what_the_code_has() {
    let rows = matrix();
    let registry = registry();
    let registered: BTreeSet<&str> = registry.list().map(|entry| entry.description().name).collect();
    let mut faults = Vec::new();
    let mut seen = BTreeSet::new();
    for row in &rows {
        let mut fault = |text: String| faults.push(format!("{MATRIX}:{}: {text}", row.line));
        if !STATES.contains(&row.state.as_str()) {
            fault(format!("{:?} is none of the states {STATES:?}", row.state));
        }
        if !row.built() && !row.tests.is_empty() {
            fault("a feature that is not built can have no test: take the test or the state away".to_owned());
        }
        if row.built() && row.state != NEVER_RUN && row.tests.is_empty() {
            fault(format!("{:?} needs the name of a test", row.state));
        }
        if row.feature.starts_with("Tool ") && row.tool.is_none() {
            fault("a row of a tool names it between backticks".to_owned());
        }
        let Some(tool) = &row.tool else { continue };
        if !seen.insert(tool.clone()) {
            fault(format!("{tool} has a row already"));
        }
        if row.built() != registered.contains(tool.as_str()) {
            let is = if row.built() { "not registered: say `not built`" } else { "registered: say how it is tested" };
            fault(format!("{tool} is {is}"));
        }
    }
    for tool in registered.iter().filter(|tool| !seen.contains(**tool)) {
        faults.push(format!(
            "{MATRIX}: the registered tool {tool} has no row: add one that begins with \"Tool `{tool}`\""
        ));
    }
    nothing(&faults);
}

#[test]
fn what_is_not_built_is_in_no_description_and_every_route_has_a_row() {
    let rows = matrix();
    let operations = operations();
    let mut faults = Vec::new();
    for row in rows.iter().filter(|row| !row.built()) {
        let mut fault = |text: String| faults.push(format!("{MATRIX}:{}: not built, yet {text}", row.line));
        for (method, path) in row.routes() {
            let path = unnamed(path);
            for (known, _) in
                operations.keys().filter(|(known, at)| *at == path && method.is_none_or(|method| method == known))
            {
                fault(format!("openapi/openapi.json has {known} {path}"));
            }
        }
        if let Some(tool) = &row.tool
            && operations.iter().any(|((_, path), id)| id == tool || path == &format!("/v1/tools/{tool}"))
        {
            fault(format!("openapi/openapi.json describes the tool {tool}"));
        }
    }
    let described: BTreeSet<(String, String)> = rows
        .iter()
        .filter(|row| row.built())
        .flat_map(|row| {
            row.routes()
                .into_iter()
                .filter_map(|(method, path)| Some((method?.to_owned(), unnamed(path))))
                .collect::<Vec<_>>()
        })
        .collect();
    for (method, path) in operations.keys().filter(|(_, path)| !path.starts_with("/v1/tools/")) {
        if !described.contains(&(method.clone(), path.clone())) {
            faults.push(format!("{MATRIX}: openapi/openapi.json has {method} {path}; add it to a row that is built"));
        }
    }
    nothing(&faults);
}

#[test]
fn every_test_that_is_named_exists() {
    let mut faults = Vec::new();
    for row in matrix() {
        for test in &row.tests {
            let Some((file, name)) = test.split_once("::") else {
                faults.push(format!("{MATRIX}:{}: {test} is no file::name", row.line));
                continue;
            };
            match fs::read_to_string(root().join(file)) {
                Ok(text) if text.contains(&format!("fn {name}(")) => {}
                Ok(_) => faults.push(format!("{MATRIX}:{}: {file} has no test {name}: name another", row.line)),
                Err(error) => faults.push(format!("{MATRIX}:{}: {file}: {error}", row.line)),
            }
        }
    }
    nothing(&faults);
}

#[test]
fn the_table_of_errors_is_the_code_table() {
    let rows = tables(ERRORS, "| Code | HTTP | Title | Retry | Meaning | What to do |");
    let mut faults = Vec::new();
    for (index, code) in ErrorCode::ALL.into_iter().enumerate() {
        let retry = if Error::new(code, "").retryable { "yes" } else { "no" };
        let right = format!("| `{}` | {} | {} | {retry} |", code.as_str(), code.status(), code.title());
        match rows.get(index) {
            Some((line, cells)) => {
                let is = format!("| {} |", cells.iter().take(4).cloned().collect::<Vec<_>>().join(" | "));
                if is != right {
                    faults.push(format!("{ERRORS}:{line}: {is}\n  the code says {right}"));
                }
                if cells.len() != 6 || cells.iter().any(String::is_empty) {
                    faults.push(format!("{ERRORS}:{line}: needs a meaning and what to do"));
                }
            }
            None => faults.push(format!("{ERRORS}: add a row {right} …")),
        }
    }
    for (line, cells) in rows.iter().skip(ErrorCode::ALL.len()) {
        faults.push(format!("{ERRORS}:{line}: there is no such code: {}", cells[0]));
    }
    nothing(&faults);
}

/// `5 s` of `Duration::from_secs(5)`; other values as they are written.
fn duration(expression: &str) -> String {
    let of = |function: &str| {
        expression
            .strip_prefix(function)?
            .strip_prefix('(')?
            .strip_suffix(')')
            .filter(|value| value.bytes().all(|byte| byte.is_ascii_digit() || byte == b'_'))
    };
    match (of("Duration::from_secs"), of("Duration::from_millis")) {
        (Some(seconds), _) => format!("{} s", seconds.replace('_', "")),
        (_, Some(millis)) => format!("{} ms", millis.replace('_', "")),
        _ => format!("`{expression}`"),
    }
}

#[test]
fn the_deadlines_of_the_architecture_are_those_of_the_code() {
    let mut faults = Vec::new();
    for (line, cells) in tables(ARCHITECTURE, "| Wait | Value | Constant |") {
        let named = code(&cells[2]).first().copied().unwrap_or_default().to_owned();
        let Some((file, name)) = named.split_once("::") else {
            faults.push(format!("{ARCHITECTURE}:{line}: the constant is not written as `file::NAME`"));
            continue;
        };
        let text = fs::read_to_string(root().join(file)).unwrap_or_default();
        let declaration = format!("const {name}: ");
        let value = text
            .lines()
            .find_map(|line| line.split_once(declaration.as_str())?.1.split_once(" = ")?.1.strip_suffix(';'))
            .map(duration);
        if value.as_ref() != Some(&cells[1]) {
            faults.push(format!("{ARCHITECTURE}:{line}: says {:?}, {file} says {value:?}", cells[1]));
        }
    }
    nothing(&faults);
}

#[test]
fn the_readme_names_every_tool_with_its_role_and_routes() {
    let rows = tables(README, "| Tool | Role | Besides `POST /v1/tools/{tool}` |");
    let registry = registry();
    let right: Vec<String> = registry
        .list()
        .map(|entry| {
            let tool = entry.description();
            let role = serde_json::to_value(tool.guardrails.role).unwrap();
            let routes = tool.routes.iter().chain(tool.raw_routes);
            let routes: Vec<_> =
                routes.map(|route| format!("`{} {}`", route.method.as_str(), route.path.replace("{*", "{"))).collect();
            format!("| `{}` | {} | {} |", tool.name, role.as_str().unwrap(), routes.join(", "))
        })
        .collect();
    let is: Vec<String> = rows.iter().map(|(_, cells)| format!("| {} |", cells.join(" | "))).collect();
    let empty = |line: &String| line.replace("|  |", "| — |");
    assert_eq!(
        is.iter().map(empty).collect::<Vec<_>>(),
        right.iter().map(empty).collect::<Vec<_>>(),
        "{README}: the table of tools should be\n{}",
        right.iter().map(empty).collect::<Vec<_>>().join("\n")
    );
}

/// One request to the Worker as a document shows it.
struct Shown {
    line: usize,
    method: String,
    path: String,
    query: Vec<String>,
    body: Option<Value>,
}

/// Every `curl` of a document that asks the Worker.
fn shown(document: &str) -> Vec<Shown> {
    let text = read(document).replace("\\\n", "");
    let requests = text.lines().enumerate().filter(|(_, line)| line.starts_with("curl ") && line.contains("$URL"));
    let request = |(index, line): (usize, &str)| {
        let after = |flag: &str| line.split_once(flag).map(|(_, rest)| rest);
        let body = after(" -d '").map(|rest| rest.rsplit_once('\'').expect("a body ends in a quote").0);
        let method = match after(" -X ").and_then(|rest| rest.split(' ').next()) {
            Some(method) => method,
            None if line.contains(" -T ") => "PUT",
            None if body.is_some() => "POST",
            None => "GET",
        };
        let target = after("$URL").and_then(|rest| rest.split([' ', '"']).next()).unwrap_or_default();
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let names = query.split('&').filter_map(|pair| pair.split('=').next()).filter(|name| !name.is_empty());
        Shown {
            line: index + 1,
            method: method.to_owned(),
            path: path.to_owned(),
            query: names.map(str::to_owned).collect(),
            body: body.map(|body| serde_json::from_str(body).unwrap_or_else(|error| panic!("{body}: {error}"))),
        }
    };
    requests.map(request).collect()
}

/// Whether a path is one of a template, whose `{path}` stands for any number of segments.
fn is_of(path: &str, template: &str) -> bool {
    let (mut segments, mut parts) = (path.split('/'), template.split('/'));
    loop {
        match (segments.next(), parts.next()) {
            (None, None) => return true,
            (Some(_), Some("{path}")) => return true,
            (Some(segment), Some(part)) if segment == part || part.starts_with('{') => {}
            _ => return false,
        }
    }
}

#[test]
fn every_request_that_the_readme_shows_is_one_of_the_api_with_parameters_that_it_has() {
    let document = openapi();
    let paths = document["paths"].as_object().unwrap();
    let requests = shown(README);
    assert!(requests.len() > 10, "{README} shows what a caller can do");
    let mut faults = Vec::new();
    for Shown { line, method, path, query, body } in requests {
        let exact = paths.keys().find(|template| **template == path);
        let Some(template) = exact.or_else(|| paths.keys().find(|template| is_of(&path, template))) else {
            faults.push(format!("{README}: request {line}: openapi/openapi.json has no {path}"));
            continue;
        };
        let operation = &paths[template][method.to_lowercase()];
        let parameters: Vec<&str> =
            operation["parameters"].as_array().into_iter().flatten().filter_map(|one| one["name"].as_str()).collect();
        let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
        let schema = match schema["$ref"].as_str().and_then(|reference| reference.strip_prefix('#')) {
            Some(pointer) => document.pointer(pointer).expect("a reference leads somewhere"),
            None => schema,
        };
        if operation.is_null() {
            faults.push(format!("{README}: request {line}: {path} does not take {method}"));
        }
        for name in query.iter().filter(|name| !parameters.contains(&name.as_str())) {
            faults.push(format!("{README}: request {line}: {method} {template} has no parameter {name}"));
        }
        for name in body.iter().filter_map(Value::as_object).flat_map(|body| body.keys()) {
            if schema["properties"].get(name).is_none() {
                faults.push(format!("{README}: request {line}: the body of {method} {template} has no field {name}"));
            }
        }
    }
    nothing(&faults);
}

#[test]
fn links_between_documents_lead_to_files() {
    let mut faults = Vec::new();
    let mut documents: Vec<String> =
        ["README.md", "FEATURE_MATRIX.md", "CHANGELOG.md", "examples/README.md"].map(String::from).to_vec();
    for entry in std::fs::read_dir(root().join("docs")).unwrap() {
        documents.push(format!("docs/{}", entry.unwrap().file_name().to_str().unwrap()));
    }
    for document in &documents {
        let text = read(document);
        for (index, line) in text.lines().enumerate() {
            for target in line.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
                let path = target.split('#').next().unwrap_or_default();
                let base = root().join(Path::new(document).parent().unwrap());
                if !path.contains("://") && !path.is_empty() && !base.join(path).exists() {
                    faults.push(format!("{document}:{}: {path} is not there", index + 1));
                }
            }
        }
    }
    nothing(&faults);
}
