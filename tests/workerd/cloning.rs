//! Repositories cloned at creation, from a real git server, with and without credentials.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::json;
use test_support::{Internet, PATIENCE, Stack, StackOptions, eventually, random_name, scratch_folder};

/// `user` and password that the private repositories take.
const USER: &str = "us%40er";
const PASSWORD: &str = "SECRET123/x";
const ENCODED: &str = "SECRET123%2Fx";
/// `us@er:SECRET123/x`.
const BASIC: &str = "dXNAZXI6U0VDUkVUMTIzL3g=";

/// A git server over HTTP: `/private/…` wants the credentials, `/silent/…` never answers.
pub struct GitServer {
    pub address: String,
    _internet: Internet,
}

impl GitServer {
    pub fn start() -> Self {
        let root = scratch_folder("git");
        let repository = root.join("public/app.git");
        let work = root.join("work");
        let git = |folder: &Path, arguments: &[&str]| {
            let identity = ["-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "init.defaultBranch=main"];
            let status = Command::new("git")
                .args(identity)
                .args(arguments)
                .current_dir(folder)
                .env("GIT_CONFIG_GLOBAL", "/dev/null")
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status();
            assert!(status.is_ok_and(|status| status.success()), "git {arguments:?}");
        };
        std::fs::create_dir_all(&work).unwrap();
        git(&work, &["init"]);
        for content in ["one", "two"] {
            std::fs::write(work.join("file"), content).unwrap();
            git(&work, &["add", "."]);
            git(&work, &["commit", "-m", content]);
        }
        git(&work, &["branch", "side", "HEAD~1"]);
        std::fs::create_dir_all(root.join("private")).unwrap();
        for name in [&repository, &root.join("private/app.git")] {
            git(&work, &["clone", "--bare", ".", &name.to_string_lossy()]);
        }
        let listener = TcpListener::bind("0.0.0.0:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let root = root.clone();
                std::thread::spawn(move || serve(connection, &root));
            }
        });
        let internet = Internet::connect();
        Self { address: format!("{}:{port}", internet.address), _internet: internet }
    }
}

fn serve(connection: TcpStream, root: &PathBuf) -> Option<()> {
    let mut reader = BufReader::new(connection.try_clone().ok()?);
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut words = line.split_whitespace();
    let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
    let (mut length, mut kind, mut encoding, mut protocol, mut allowed) =
        (0, String::new(), String::new(), String::new(), false);
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok()?;
        let Some((name, value)) = header.trim_end().split_once(": ") else { break };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.parse().ok()?,
            "content-type" => kind = value.to_owned(),
            "content-encoding" => encoding = value.to_owned(),
            "git-protocol" => protocol = value.to_owned(),
            "authorization" => allowed = value == format!("Basic {BASIC}"),
            _ => {}
        }
    }
    let mut connection = connection;
    if target.starts_with("/silent/") {
        std::thread::sleep(Duration::from_secs(120));
        return None;
    }
    if target.starts_with("/private/") && !allowed {
        let refusal = "HTTP/1.1 401 Unauthorized\r\nwww-authenticate: Basic realm=\"git\"\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
        return connection.write_all(refusal.as_bytes()).ok();
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let mut backend = Command::new("git")
        .arg("http-backend")
        .env("GIT_PROJECT_ROOT", root)
        .env("GIT_HTTP_EXPORT_ALL", "1")
        .env("GIT_CONFIG_COUNT", "1")
        .env("GIT_CONFIG_KEY_0", "safe.directory")
        .env("GIT_CONFIG_VALUE_0", "*")
        .env("REQUEST_METHOD", method)
        .env("PATH_INFO", path)
        .env("QUERY_STRING", query)
        .env("CONTENT_TYPE", kind)
        .env("CONTENT_LENGTH", length.to_string())
        .env("HTTP_CONTENT_ENCODING", encoding)
        .env("HTTP_GIT_PROTOCOL", &protocol)
        .env("GIT_PROTOCOL", &protocol)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    backend.stdin.take()?.write_all(&body).ok()?;
    let answer = backend.wait_with_output().ok()?.stdout;
    let text = String::from_utf8_lossy(&answer);
    let status = text.lines().find_map(|line| line.strip_prefix("Status: ")).unwrap_or("200 OK").trim().to_owned();
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let head = format!(
        "HTTP/1.1 {status}\r\n{}content-length: {}\r\nconnection: close\r\n\r\n",
        String::from_utf8_lossy(&answer[..end - 2]),
        answer.len() - end
    );
    connection.write_all(head.as_bytes()).ok()?;
    connection.write_all(&answer[end..]).ok()
}

#[tokio::test]
async fn a_repository_is_there_when_the_creation_answers() {
    let server = GitServer::start();
    let stack = Stack::shared();
    let sandbox = stack.unmade_sandbox();
    let arguments = json!({"id": sandbox.id, "gitUrl": format!("http://{}/public/app.git", server.address)});
    let made = sandbox.client.call("createSandbox", &arguments).await.ok();
    assert_eq!((&made["gitDirectory"], &made["created"]), (&json!("/workspace/app"), &json!(true)));
    assert_eq!(sandbox.sh("cat app/file; ls").await, "twoapp\n");
    assert_eq!(sandbox.sh("git -C app rev-parse HEAD").await.trim(), made["gitCommit"].as_str().unwrap());
    // The same creation again is the same sandbox, and no second clone.
    sandbox.sh("echo mine > app/file").await;
    let again = sandbox.client.call("createSandbox", &arguments).await.ok();
    assert_eq!(again["created"], false);
    assert_eq!(sandbox.sh("cat app/file").await, "mine\n");
    let other = json!({"id": sandbox.id, "gitUrl": format!("http://{}/public/other.git", server.address)});
    let problem = sandbox.client.call("createSandbox", &other).await.problem(409, "conflict");
    assert_eq!(problem.details["field"], "gitUrl");
    // Branch and depth do what they say.
    let sandbox = stack.sandbox_with(json!({
        "gitUrl": format!("http://{}/public/app.git", server.address), "gitBranch": "side", "gitDepth": 1
    }));
    let sandbox = sandbox.await;
    assert_eq!(sandbox.sh("cat app/file; git -C app rev-list --count HEAD").await, "one1\n");
}

#[tokio::test]
async fn callers_at_once_share_one_clone() {
    let server = GitServer::start();
    let sandbox = Stack::shared().unmade_sandbox();
    let arguments = json!({"id": sandbox.id, "gitUrl": format!("http://{}/public/app.git", server.address)});
    let calls = (0..6).map(|_| sandbox.client.call("createSandbox", &arguments));
    let answers = futures_util::future::join_all(calls).await;
    assert_eq!(answers.iter().filter(|answer| answer.ok()["created"] == true).count(), 1);
    assert_eq!(sandbox.sh("ls -A; cat app/file").await, "app\ntwo");
}

#[tokio::test]
async fn credentials_work_and_stand_nowhere() {
    let server = GitServer::start();
    let stack = Stack::start(StackOptions::default());
    let sandbox = stack.unmade_sandbox();
    let url = format!("http://{USER}:{ENCODED}@{}/private/app.git", server.address);
    let made = sandbox.client.call("createSandbox", &json!({"id": sandbox.id, "gitUrl": url})).await;
    assert_eq!(made.ok()["gitDirectory"], "/workspace/app");
    let clean = |text: &str| {
        for secret in [PASSWORD, ENCODED, "SECRET123", BASIC] {
            assert!(!text.contains(secret), "{text}");
        }
    };
    clean(&made.text());
    clean(&sandbox.sh("cat app/.git/config; grep -r SECRET''123 . || true; env; cat app/file").await);
    assert!(
        sandbox.sh("cat app/.git/config").await.contains(&format!("url = http://{}/private/app.git", server.address))
    );
    // A clone that is refused tells git's words without them, as an answer and as a stream, and leaves no sandbox.
    let wrong = format!("http://{USER}:WRONG{ENCODED}@{}/private/app.git", server.address);
    let refused = stack.unmade_sandbox();
    let arguments = json!({"id": refused.id, "gitUrl": wrong});
    let answer = refused.client.call("createSandbox", &arguments).await;
    let problem = answer.problem(400, "invalid_arguments");
    assert!(problem.detail.contains("Authentication failed"), "{}", problem.detail);
    clean(&answer.text());
    refused.call("getSandbox", json!({})).await.problem(404, "not_found");
    let streamed = refused.client.stream("createSandbox", &arguments).await.transcript().await;
    clean(&format!("{} {}", streamed.error(), String::from_utf8_lossy(&streamed.stderr)));
    refused.call("getSandbox", json!({})).await.problem(404, "not_found");
    // Neither the books of the tenant, nor the sandbox's own, nor the log hold them.
    stack.worker().kill();
    let storage = stack.worker().storage().to_owned();
    let mut folders = vec![storage.clone(), storage.with_extension("log")];
    let mut read = 0;
    while let Some(path) = folders.pop() {
        if path.is_dir() {
            folders.extend(std::fs::read_dir(path).unwrap().flatten().map(|entry| entry.path()));
        } else if let Ok(bytes) = std::fs::read(&path) {
            read += 1;
            clean(&String::from_utf8_lossy(&bytes));
        }
    }
    assert!(read > 2, "the storage was read");
}

#[tokio::test]
async fn a_server_that_never_answers_is_given_up_and_no_process_list_has_the_credentials() {
    let server = GitServer::start();
    let sandbox = Stack::shared().unmade_sandbox();
    let secret = random_name("SECRET123");
    let url = format!("http://user:{secret}@{}/silent/app.git", server.address);
    // Long enough to be seen while it runs: a look takes seconds on a machine that has other work.
    let arguments = json!({"id": sandbox.id, "gitUrl": url, "gitTimeout": 30});
    let create = sandbox.client.call("createSandbox", &arguments);
    let look = async {
        let seen = || async {
            let list = sandbox.call("exec", json!({"command": "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"})).await;
            (list.status == 200 && list.text().contains("clone")).then(|| list.text())
        };
        let list = eventually("the clone runs", PATIENCE, seen).await;
        assert!(list.contains("/silent/app.git") && !list.contains(&secret), "{list}");
        assert!(test_support::find_by_argument(&secret).is_empty());
    };
    let (answer, ()) = tokio::join!(create, look);
    let problem = answer.problem(504, "timeout");
    assert!(problem.detail.contains("gitTimeout"), "{}", problem.detail);
    assert!(!answer.text().contains(&secret));
    sandbox.call("getSandbox", json!({})).await.problem(404, "not_found");
}

#[tokio::test]
async fn what_could_be_an_option_or_a_command_is_refused_before_anything_is_made() {
    let sandbox = Stack::shared().unmade_sandbox();
    let long = "a".repeat(300);
    for arguments in [
        json!({"gitUrl": "ext::sh -c id"}),
        json!({"gitUrl": "-oProxyCommand=x"}),
        json!({"gitUrl": "file:///etc"}),
        json!({"gitUrl": "ssh://host/a"}),
        json!({"gitUrl": ""}),
        json!({"gitUrl": "https://user:SECRET123@host/a?x=1"}),
        json!({"gitUrl": "https://host/a", "gitBranch": "--upload-pack=touch /tmp/pwn"}),
        json!({"gitUrl": "https://host/a", "gitBranch": "../x"}),
        json!({"gitUrl": "https://host/a", "gitBranch": ""}),
        json!({"gitUrl": "https://host/a", "gitBranch": long}),
        json!({"gitUrl": "https://host/a", "gitDepth": 0}),
        json!({"gitUrl": "https://host/a", "gitTimeout": 3601}),
        json!({"gitBranch": "main"}),
        json!({"gitDepth": 1}),
    ] {
        let mut arguments = arguments;
        arguments["id"] = json!(sandbox.id);
        let answer = sandbox.client.call("createSandbox", &arguments).await;
        let problem = answer.problem(400, "invalid_arguments");
        assert!(problem.detail.contains("git"), "{}", problem.detail);
        assert!(!answer.text().contains("SECRET123"));
    }
    sandbox.call("getSandbox", json!({})).await.problem(404, "not_found");
    assert_eq!(sandbox.starts(), 0);
}
