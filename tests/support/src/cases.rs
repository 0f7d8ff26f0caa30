//! One table of calls that give the same on every machine a sandbox can run on: each tier that has sandboxes runs it.
//!
//! The calls are made in their order in one sandbox, made with [`ENVIRONMENT`]; later ones build on what earlier ones left.

use serde_json::Value;

use crate::stack::Sandbox;

/// What the sandbox of the table is made with, as JSON.
pub const ENVIRONMENT: &str = r#"{"GIVEN": "a b'c\"$HOME\né `id` \\ %s"}"#;

/// What a call must give.
#[derive(Clone, Copy, Debug)]
pub enum Expected {
    /// Success with these fields among others, as JSON.
    Output(&'static str),
    /// A problem with this status and code.
    Problem(u16, &'static str),
}

/// One call.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// What it shows.
    pub name: &'static str,
    /// The tool.
    pub tool: &'static str,
    /// Its arguments without the sandbox, as JSON.
    pub arguments: &'static str,
    /// What it must give.
    pub expected: Expected,
}

const fn case(name: &'static str, tool: &'static str, arguments: &'static str, expected: Expected) -> Case {
    Case { name, tool, arguments, expected }
}

use Expected::{Output, Problem};

/// The table.
pub const CASES: &[Case] = &[
    case(
        "both channels and the exit code",
        "exec",
        r#"{"command": "echo out; echo err >&2; exit 3"}"#,
        Output(r#"{"exitCode": 3, "stdout": "out\n", "stderr": "err\n", "truncated": false, "stdoutBytes": 4}"#),
    ),
    case(
        "an unknown program is 127",
        "exec",
        r#"{"command": "exec no-such-command-here"}"#,
        Output(r#"{"exitCode": 127, "stdout": ""}"#),
    ),
    case("a directory is 126", "exec", r#"{"command": "/tmp"}"#, Output(r#"{"exitCode": 126}"#)),
    case(
        "a signal is told",
        "exec",
        r#"{"command": "kill -KILL $$"}"#,
        Output(r#"{"exitCode": 137, "signal": "SIGKILL"}"#),
    ),
    case(
        "the sandbox's environment arrives exactly",
        "exec",
        r#"{"command": "printf %s \"$GIVEN\""}"#,
        Output(r#"{"stdout": "a b'c\"$HOME\né `id` \\ %s"}"#),
    ),
    case(
        "a call's environment lies over it",
        "exec",
        r#"{"command": "printf %s \"$GIVEN,$OTHER\"", "env": {"GIVEN": "call", "OTHER": "x y"}}"#,
        Output(r#"{"stdout": "call,x y"}"#),
    ),
    case(
        "nothing of the daemon is in it",
        "exec",
        r#"{"command": "env | cut -d= -f1 | grep -c -i -e token -e sandboxd -e json; printf %s \"${SANDBOX_ID:+set}\""}"#,
        Output(r#"{"stdout": "0\nset"}"#),
    ),
    case(
        "standard input is given and closed",
        "exec",
        r#"{"command": "cat; wc -c", "stdin": "a\né"}"#,
        Output(r#"{"stdout": "a\né0\n", "exitCode": 0}"#),
    ),
    case(
        "commands begin in the workspace",
        "exec",
        r#"{"command": "pwd; mkdir -p deep/er"}"#,
        Output(r#"{"stdout": "/workspace\n"}"#),
    ),
    case(
        "or where the call says",
        "exec",
        r#"{"command": "pwd", "cwd": "deep/er"}"#,
        Output(r#"{"stdout": "/workspace/deep/er\n"}"#),
    ),
    case(
        "a folder that is not there is named",
        "exec",
        r#"{"command": "pwd", "cwd": "not/there"}"#,
        Problem(400, "invalid_arguments"),
    ),
    case(
        "python is its own language",
        "exec",
        r#"{"command": "import sys\nprint(6 * 7)\nsys.exit(4)", "language": "python"}"#,
        Output(r#"{"stdout": "42\n", "exitCode": 4}"#),
    ),
    case(
        "a timeout is told with what was written",
        "exec",
        r#"{"command": "echo before; sleep 300", "timeout": 15}"#,
        Problem(504, "timeout"),
    ),
    case(
        "a command cannot end the daemon",
        "exec",
        r#"{"command": "kill -TERM 1; kill -KILL 1; echo tried"}"#,
        Output(r#"{"stdout": "tried\n"}"#),
    ),
    case(
        "a background child does not hold the answer",
        "exec",
        r#"{"command": "sleep 300 & echo started", "timeout": 60}"#,
        Output(r#"{"stdout": "started\n"}"#),
    ),
    case(
        "more output than the cap is cut and said to be",
        "exec",
        r#"{"command": "head -c 3000000 /dev/zero | tr '\\0' x"}"#,
        Output(r#"{"truncated": true, "stdoutBytes": 3000000, "exitCode": 0}"#),
    ),
    case(
        "a file is written",
        "writeFile",
        r#"{"path": "a/b.txt", "content": "it's \"é\"\r\nno final newline"}"#,
        Output(r#"{"size": 27, "created": true}"#),
    ),
    case(
        "and replaced",
        "writeFile",
        r#"{"path": "a/b.txt", "content": "new"}"#,
        Output(r#"{"size": 3, "created": false}"#),
    ),
    case("and read", "readFile", r#"{"path": "a/b.txt"}"#, Output(r#"{"content": "new", "size": 3, "offset": 0}"#)),
    case(
        "a command sees it, with the owner that commands have",
        "exec",
        r#"{"command": "cat a/b.txt; echo x >> a/b.txt; [ \"$(stat -c %u a/b.txt)\" = \"$(id -u)\" ] && echo own"}"#,
        Output(r#"{"stdout": "newown\n"}"#),
    ),
    case(
        "and what it writes is read",
        "readFile",
        r#"{"path": "/workspace/a/b.txt"}"#,
        Output(r#"{"content": "newx\n"}"#),
    ),
    case(
        "bytes that are no text",
        "writeFile",
        r#"{"path": "bytes", "content": "//4AgA==", "encoding": "base64"}"#,
        Output(r#"{"size": 4}"#),
    ),
    case(
        "come back as they were",
        "readFile",
        r#"{"path": "bytes"}"#,
        Output(r#"{"content": "//4AgA==", "encoding": "base64"}"#),
    ),
    case("a file that is not there", "readFile", r#"{"path": "none"}"#, Problem(404, "not_found")),
    case("a folder is no file", "readFile", r#"{"path": "deep"}"#, Problem(409, "conflict")),
    case("nothing outside is written", "writeFile", r#"{"path": "../x", "content": ""}"#, Problem(403, "forbidden")),
    case("nothing outside is read", "readFile", r#"{"path": "/etc/passwd"}"#, Problem(403, "forbidden")),
    case(
        "a link out of the workspace",
        "exec",
        r#"{"command": "ln -s /etc/passwd link && echo made"}"#,
        Output(r#"{"stdout": "made\n"}"#),
    ),
    case("is not followed", "readFile", r#"{"path": "link"}"#, Problem(403, "forbidden")),
    case("an unknown argument", "exec", r#"{"command": "true", "nothing": 1}"#, Problem(400, "invalid_arguments")),
    case(
        "a secret that is not there",
        "exec",
        r#"{"command": "true", "secrets": {"NPM_TOKEN": "no-such-secret-of-the-table"}}"#,
        Problem(400, "invalid_arguments"),
    ),
    case(
        "the sandbox tells of itself",
        "getSandbox",
        "{}",
        Output(r#"{"status": "running", "state": "running", "generation": 1}"#),
    ),
    case("it is destroyed", "destroySandbox", "{}", Output(r#"{"status": "destroyed"}"#)),
    case("and gone", "exec", r#"{"command": "true"}"#, Problem(404, "not_found")),
];

impl Case {
    /// Its arguments in a sandbox.
    pub fn arguments(&self, sandbox_id: &str) -> Value {
        let mut arguments = parsed(self.arguments);
        arguments["sandboxId"] = sandbox_id.into();
        arguments
    }

    /// Makes the call in a sandbox.
    ///
    /// # Panics
    /// When it gives anything else than it must.
    pub async fn run(&self, sandbox: &Sandbox) {
        let answer = sandbox.client.call(self.tool, &self.arguments(&sandbox.id)).await;
        if answer.status != 200 {
            let problem = answer.any_problem();
            assert_eq!(problem.code, answer.json()["code"], "{}", self.name);
        }
        self.judge("rest", &if answer.status == 200 { Ok(answer.ok()) } else { Err(answer.json()) });
    }

    /// Holds what a call gave through a door, its output or its problem, against what it must give.
    ///
    /// # Panics
    /// When it gave anything else.
    #[track_caller]
    pub fn judge(&self, door: &str, told: &Result<Value, Value>) {
        let name = self.name;
        match (self.expected, told) {
            (Output(fields), Ok(output)) => {
                for (field, value) in parsed(fields).as_object().expect("the fields are an object") {
                    assert_eq!(&output[field], value, "{door}: {name}: {field} in {output}");
                }
            }
            (Problem(status, code), Err(problem)) => {
                assert_eq!(
                    (&problem["status"], &problem["code"]),
                    (&status.into(), &code.into()),
                    "{door}: {name}: {problem}"
                );
            }
            (_, told) => panic!("{door}: {name}: {told:?}"),
        }
    }
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).expect("the table holds JSON")
}

/// Runs the whole table; `sandbox` was made with [`ENVIRONMENT`].
pub async fn run_all(sandbox: &Sandbox) {
    for case in CASES {
        case.run(sandbox).await;
    }
}
