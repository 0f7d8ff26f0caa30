//! From a tool's input schema to flags, and from flags to its arguments.
//!
//! | Schema | Flag |
//! |---|---|
//! | a scalar `sandboxId` | `--sandbox-id VALUE`, checked for its type and choices |
//! | an array | the flag once for every item |
//! | an object of free names | `--labels NAME=VALUE`, once for every name |
//! | an object of fields | `--filters.status VALUE` for each, or `--filters JSON` |
//!
//! Bounds, patterns and what is required of each other are left to the service, which names the field at fault.

use crate::catalog::Tool;
use crate::failure::{Failure, Result};
use clap::builder::{PossibleValue, PossibleValuesParser, ValueParser};
use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::{Map, Number, Value};
use std::collections::BTreeSet;
use std::io::Read;

/// Objects of fields within objects of fields get flags of their own so deep.
const DEEPEST: usize = 3;

/// Flags that every command of a tool has; an argument of that name is `--argument-…`.
const OWN_FLAGS: [&str; 8] = ["help", "version", "json", "profile", "input", "stream", "idempotency-key", "send-stdin"];

/// Most bytes of `--input`: the service takes 4 MiB of JSON.
const LARGEST_INPUT: u64 = 8 << 20;

/// One flag.
#[derive(Debug, PartialEq)]
struct Field {
    flag: String,
    /// Names that lead to the argument.
    path: Vec<String>,
    kind: Kind,
    choices: Vec<String>,
    description: String,
    required: bool,
    /// Whether its values may be secrets.
    is_secret: bool,
}

/// What a flag takes.
#[derive(Clone, Debug, PartialEq)]
enum Kind {
    Text,
    Integer,
    Number,
    Boolean,
    /// Any JSON value.
    Json,
    List(Box<Kind>),
    /// `NAME=VALUE`.
    Map(Box<Kind>),
}

/// `sandboxId` as a flag: `sandbox-id`.
pub(crate) fn kebab(name: &str) -> String {
    let mut kebab = String::new();
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && !kebab.is_empty() && !kebab.ends_with(['-', '.']) {
            kebab.push('-');
        }
        kebab.push(letter.to_ascii_lowercase());
    }
    kebab
}

/// The command of a tool.
pub(crate) fn command(tool: &Tool) -> Command {
    let title = match tool.annotations.title.as_str() {
        "" => tool.description.split(". ").next().unwrap_or_default().to_owned(),
        title => title.to_owned(),
    };
    let mut long = flowing(&tool.description);
    if !tool.guardrails.role.is_empty() {
        long.push_str(&format!("\n\nTool {}, for keys with the role {} or more.", tool.name, tool.guardrails.role));
    }
    if tool.annotations.destructive_hint {
        long.push_str(" It can change or remove what is there.");
    }
    let command = Command::new(kebab(&tool.name)).alias(tool.name.clone()).about(title).long_about(long);
    command.args(flags(tool, &[])).args(own_flags())
}

/// Flags for the arguments of a tool but those in `without`.
pub(crate) fn flags(tool: &Tool, without: &[&str]) -> Vec<Arg> {
    fields(tool).into_iter().filter(|field| !field.is_one_of(without)).map(Field::arg).collect()
}

pub(crate) fn input_flag() -> Arg {
    Arg::new("input")
        .long("input")
        .value_name("FILE")
        .help_heading("Call")
        .help("All arguments as a JSON object: a file, `-` for standard input, or the object itself; flags lie over it")
}

fn own_flags() -> [Arg; 3] {
    [
        input_flag(),
        Arg::new("stream")
            .long("stream")
            .action(ArgAction::SetTrue)
            .help_heading("Call")
            .help("With --json: a line of JSON for every event while it runs, the result last"),
        idempotency_flag(),
    ]
}

pub(crate) fn idempotency_flag() -> Arg {
    Arg::new("idempotency-key")
        .long("idempotency-key")
        .value_name("KEY")
        .help_heading("Call")
        .help("The same call with the same key is carried out once and answered alike for 24 hours")
}

/// The arguments that a command line stands for.
pub(crate) fn collect(tool: &Tool, without: &[&str], matches: &ArgMatches) -> Result<Map<String, Value>> {
    let mut arguments = match matches.try_get_one::<String>("input") {
        Ok(Some(source)) => read_input(source)?,
        _ => Map::new(),
    };
    for field in fields(tool).into_iter().filter(|field| !field.is_one_of(without)) {
        if let Some(value) = field.value(matches)? {
            put(&mut arguments, &field.path, value);
        }
    }
    Ok(arguments)
}

/// Arguments as one JSON object.
pub(crate) fn read_input(source: &str) -> Result<Map<String, Value>> {
    let text = match source {
        object if object.trim_start().starts_with('{') => object.as_bytes().to_vec(),
        "-" => read_bounded(std::io::stdin().lock(), "standard input")?,
        path => {
            let file = std::fs::File::open(path).map_err(|error| Failure::file("read", path.as_ref(), error))?;
            read_bounded(file, path)?
        }
    };
    match serde_json::from_slice(&text) {
        Ok(Value::Object(arguments)) => Ok(arguments),
        Ok(_) => Err(Failure::Usage("--input: is no JSON object".to_owned())),
        Err(error) => Err(Failure::Usage(format!("--input: is no JSON: {error}"))),
    }
}

fn read_bounded(reader: impl Read, name: &str) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    let read = reader.take(LARGEST_INPUT + 1).read_to_end(&mut text);
    read.map_err(|error| Failure::file("read", name.as_ref(), error))?;
    if text.len() as u64 > LARGEST_INPUT {
        return Err(Failure::Usage(format!("--input: is over {LARGEST_INPUT} bytes; `cfops cp` takes large files")));
    }
    Ok(text)
}

fn put(arguments: &mut Map<String, Value>, path: &[String], value: Value) {
    match path {
        [] => {}
        [name] => match (arguments.get_mut(name), value) {
            // An object and a flag for one of its fields are given together.
            (Some(Value::Object(there)), Value::Object(more)) => there.extend(more),
            (_, value) => {
                arguments.insert(name.clone(), value);
            }
        },
        [name, rest @ ..] => {
            let inner = arguments.entry(name.clone()).or_insert_with(|| Value::Object(Map::new()));
            if !inner.is_object() {
                *inner = Value::Object(Map::new());
            }
            if let Value::Object(inner) = inner {
                put(inner, rest, value);
            }
        }
    }
}

fn fields(tool: &Tool) -> Vec<Field> {
    let mut found = Vec::new();
    fields_below(&tool.input_schema, &[], true, &mut found);
    let mut taken: BTreeSet<String> = OWN_FLAGS.map(str::to_owned).into();
    for field in &mut found {
        field.is_secret = tool.guardrails.unrecorded_arguments.contains(&format!("/{}", field.path.join("/")));
        while !taken.insert(field.flag.clone()) {
            field.flag = format!("argument-{}", field.flag);
        }
    }
    found
}

fn fields_below(schema: &Value, path: &[String], all_required: bool, found: &mut Vec<Field>) {
    let Some(properties) = schema["properties"].as_object() else { return };
    let required = |name: &str| schema["required"].as_array().is_some_and(|names| names.iter().any(|one| one == name));
    for (name, property) in properties {
        let path = [path, std::slice::from_ref(name)].concat();
        let required = all_required && required(name);
        let has_fields = property["properties"].as_object().is_some_and(|fields| !fields.is_empty());
        found.push(Field {
            flag: path.iter().map(|name| kebab(name)).collect::<Vec<_>>().join("."),
            kind: kind(property),
            choices: choices(property),
            description: flowing(property["description"].as_str().unwrap_or_default()),
            // What is required of an object may come from the flags of its fields.
            required: required && !has_fields,
            is_secret: false,
            path: path.clone(),
        });
        if has_fields && path.len() < DEEPEST {
            fields_below(property, &path, false, found);
        }
    }
}

fn kind(schema: &Value) -> Kind {
    match schema["type"].as_str() {
        Some("string") => Kind::Text,
        Some("integer") => Kind::Integer,
        Some("number") => Kind::Number,
        Some("boolean") => Kind::Boolean,
        Some("array") => Kind::List(Box::new(match kind(&schema["items"]) {
            Kind::List(_) | Kind::Map(_) => Kind::Json,
            item => item,
        })),
        Some("object") if schema["additionalProperties"].is_object() => {
            Kind::Map(Box::new(match kind(&schema["additionalProperties"]) {
                Kind::List(_) | Kind::Map(_) => Kind::Json,
                item => item,
            }))
        }
        _ => Kind::Json,
    }
}

fn choices(schema: &Value) -> Vec<String> {
    let listed = schema["enum"].as_array().or_else(|| schema["items"]["enum"].as_array());
    listed.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Text whose lines are broken where the terminal ends, and not where the source does.
fn flowing(text: &str) -> String {
    text.split("\n\n").map(|paragraph| paragraph.replace('\n', " ")).collect::<Vec<_>>().join("\n\n")
}

impl Field {
    fn id(&self) -> String {
        self.path.join(".")
    }

    fn is_one_of(&self, names: &[&str]) -> bool {
        self.path.first().is_some_and(|first| names.contains(&first.as_str()))
    }

    fn arg(self) -> Arg {
        let mut help = self.description.clone();
        match (&self.kind, self.is_secret) {
            (_, false) => {}
            (Kind::Map(_), true) => help.push_str(
                " NAME alone takes the value that it has in this environment, which keeps it from other processes of this machine.",
            ),
            (_, true) => {
                help.push_str(" Other processes of this machine can read it here; --input can read it from a file.");
            }
        }
        let arg = Arg::new(self.id()).long(self.flag.clone()).help(help).action(ArgAction::Set);
        let arg = if self.path == ["sandboxId"] { arg.short('s') } else { arg };
        let arg = if self.required { arg.required_unless_present("input") } else { arg };
        match &self.kind {
            Kind::Boolean => arg
                .num_args(0..=1)
                .require_equals(true)
                .default_missing_value("true")
                .value_name("true|false")
                .value_parser(PossibleValuesParser::new(["true", "false"]))
                .hide_possible_values(true),
            Kind::List(item) => {
                let arg = arg.action(ArgAction::Append).value_name(item.value_name()).allow_hyphen_values(true);
                arg.value_parser(self.parser())
            }
            Kind::Map(_) => arg.action(ArgAction::Append).value_name("NAME=VALUE").allow_hyphen_values(true),
            scalar => arg.value_name(scalar.value_name()).allow_hyphen_values(true).value_parser(self.parser()),
        }
    }

    fn parser(&self) -> ValueParser {
        if self.choices.is_empty() {
            return ValueParser::string();
        }
        PossibleValuesParser::new(self.choices.iter().map(|choice| PossibleValue::new(choice.clone()))).into()
    }

    fn value(&self, matches: &ArgMatches) -> Result<Option<Value>> {
        let Ok(Some(texts)) = matches.try_get_many::<String>(&self.id()) else { return Ok(None) };
        let texts: Vec<&str> = texts.map(String::as_str).collect();
        let wrong = |why: String| Failure::Usage(format!("--{}: {why}", self.flag));
        let value = match &self.kind {
            Kind::List(item) => {
                let items: std::result::Result<Vec<Value>, String> = texts.iter().map(|text| item.read(text)).collect();
                Value::Array(items.map_err(wrong)?)
            }
            Kind::Map(item) => {
                let mut map = Map::new();
                for text in texts {
                    let (name, value) = match text.split_once('=') {
                        Some((name, value)) => (name, value.to_owned()),
                        None if self.is_secret => {
                            (text, std::env::var(text).map_err(|_| wrong(format!("{text} is not set here")))?)
                        }
                        None => return Err(wrong(format!("{text:?} is not NAME=VALUE"))),
                    };
                    map.insert(name.to_owned(), item.read(&value).map_err(wrong)?);
                }
                Value::Object(map)
            }
            scalar => match texts.last() {
                Some(text) => scalar.read(text).map_err(wrong)?,
                None => return Ok(None),
            },
        };
        Ok(Some(value))
    }
}

impl Kind {
    fn value_name(&self) -> &'static str {
        match self {
            Self::Text => "TEXT",
            Self::Integer | Self::Number => "NUMBER",
            Self::Boolean => "true|false",
            Self::Json | Self::List(_) | Self::Map(_) => "JSON",
        }
    }

    fn read(&self, text: &str) -> Result<Value, String> {
        let number = || serde_json::from_str::<Number>(text).map_err(|_| format!("{text:?} is no number"));
        match self {
            Self::Text => Ok(Value::String(text.to_owned())),
            Self::Boolean => text.parse().map(Value::Bool).map_err(|_| format!("{text:?} is neither true nor false")),
            Self::Number => number().map(Value::Number),
            Self::Integer => match number()? {
                number if number.is_i64() || number.is_u64() => Ok(Value::Number(number)),
                _ => Err(format!("{text:?} is no whole number")),
            },
            Self::Json | Self::List(_) | Self::Map(_) => {
                serde_json::from_str(text).map_err(|error| format!("{text:?} is no JSON: {error}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn tool() -> Tool {
        let schema = json!({
            "type": "object",
            "required": ["sandboxId", "permissions"],
            "properties": {
                "sandboxId": { "type": "string", "description": "Sandbox to\nrun in." },
                "timeout": { "type": "number" },
                "limit": { "type": "integer" },
                "force": { "type": "boolean" },
                "language": { "type": "string", "enum": ["bash", "python"] },
                "scopes": { "type": "array", "items": { "type": "string", "enum": ["a", "b"] } },
                "ports": { "type": "array", "items": { "type": "integer" } },
                "steps": { "type": "array", "items": { "type": "object", "properties": { "run": {} } } },
                "env": { "type": "object", "additionalProperties": { "type": "string" } },
                "weights": { "type": "object", "additionalProperties": { "type": "number" } },
                "permissions": {
                    "type": "object",
                    "required": ["role"],
                    "properties": {
                        "role": { "type": "string" },
                        "sandboxLabels": { "type": "object", "additionalProperties": { "type": "string" } },
                    },
                },
                "json": { "type": "string" },
            },
        });
        serde_json::from_value(json!({
            "name": "doThings", "description": "Does things.", "inputSchema": schema,
            "guardrails": { "role": "operator", "unrecordedArguments": ["/env"] },
        }))
        .unwrap()
    }

    fn parsed(arguments: &[&str]) -> Result<Value, String> {
        let tool = tool();
        let line = std::iter::once("do-things").chain(arguments.iter().copied());
        let matches = command(&tool).try_get_matches_from(line).map_err(|error| error.to_string())?;
        match collect(&tool, &[], &matches) {
            Ok(arguments) => Ok(Value::Object(arguments)),
            Err(Failure::Usage(text)) => Err(text),
            Err(_) => Err("another failure".to_owned()),
        }
    }

    #[test]
    fn names_become_flags() {
        assert_eq!(kebab("sandboxId"), "sandbox-id");
        assert_eq!(kebab("exec"), "exec");
        assert_eq!(kebab("filters.createdAfter"), "filters.created-after");
    }

    #[test]
    fn every_kind_of_argument_has_its_flag() {
        let line = [
            "-s",
            "demo",
            "--timeout",
            "1.5",
            "--limit=3",
            "--force",
            "--language",
            "python",
            "--scopes",
            "a",
            "--scopes",
            "b",
            "--ports",
            "80",
            "--env",
            "A=b=c",
            "--env",
            "E=",
            "--weights",
            "x=-2",
            "--steps",
            r#"{"run":"ls"}"#,
            "--permissions.role",
            "viewer",
            "--permissions.sandbox-labels",
            "team=x",
            "--argument-json",
            "-x",
        ];
        let expected = json!({
            "sandboxId": "demo", "timeout": 1.5, "limit": 3, "force": true, "language": "python", "scopes": ["a", "b"],
            "ports": [80], "env": { "A": "b=c", "E": "" }, "weights": { "x": -2 }, "steps": [{ "run": "ls" }],
            "permissions": { "role": "viewer", "sandboxLabels": { "team": "x" } }, "json": "-x",
        });
        assert_eq!(parsed(&line), Ok(expected));
    }

    #[test]
    fn a_text_is_taken_as_it_is_also_where_it_looks_like_a_flag() {
        let value = parsed(&["-s", "--json", "--force=false"]).unwrap();
        assert_eq!(value, json!({ "sandboxId": "--json", "force": false }));
        assert_eq!(parsed(&["-s", "12"]).unwrap()["sandboxId"], "12", "a number is text where text is wanted");
    }

    #[test]
    fn what_is_of_the_wrong_kind_is_told_with_its_flag() {
        let refused = |more: &[&str]| parsed(&[&["-s", "x"], more].concat()).unwrap_err();
        assert_eq!(refused(&["--limit", "1.5"]), "--limit: \"1.5\" is no whole number");
        assert_eq!(refused(&["--timeout", "soon"]), "--timeout: \"soon\" is no number");
        assert_eq!(refused(&["--weights", "A"]), "--weights: \"A\" is not NAME=VALUE");
        assert_eq!(refused(&["--env", "NO_SUCH_NAME_HERE"]), "--env: NO_SUCH_NAME_HERE is not set here");
        assert!(refused(&["--steps", "{"]).starts_with("--steps: \"{\" is no JSON"));
        assert!(refused(&["--language", "perl"]).contains("bash, python"));
        assert!(refused(&["--force=maybe"]).contains("true"));
        assert!(refused(&["--nothing", "1"]).contains("--nothing"));
        assert!(parsed(&[]).unwrap_err().contains("--sandbox-id"), "what is required is named");
    }

    #[test]
    fn input_is_the_ground_that_flags_lie_over() {
        let input = r#" {"sandboxId": "a", "permissions": {"role": "viewer"}, "env": {"A": "1"}, "new": 1}"#;
        let value = parsed(&["--input", input, "--sandbox-id", "b", "--env", "B=2"]).unwrap();
        let expected = json!({
            "sandboxId": "b", "permissions": { "role": "viewer" }, "env": { "A": "1", "B": "2" }, "new": 1,
        });
        assert_eq!(value, expected);
        assert_eq!(parsed(&["--input", "{"]).map_err(|text| text.starts_with("--input: is no JSON")), Err(true));
    }

    #[test]
    fn a_secret_can_come_from_the_environment_and_its_flag_says_so() {
        let path = std::env::var("PATH").unwrap();
        assert_eq!(parsed(&["-s", "x", "--env", "PATH"]).unwrap()["env"]["PATH"], path);
        let help = command(&tool()).render_long_help().to_string();
        let help: String = help.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(help.contains("NAME alone takes the value that it has in this environment"), "{help}");
        assert!(help.contains("for keys with the role operator"), "{help}");
    }
}
