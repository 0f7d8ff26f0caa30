//! A repository cloned at creation into a container, from a real git server in another one.

use std::time::Duration;

use serde_json::json;
use test_support::{ContainerStack, Sandbox, within};

/// Makes a repository of two commits and serves it; tells its URL.
async fn serve(sandbox: &Sandbox) -> String {
    sandbox
        .sh("set -e; mkdir -p work cgi-bin; cd work; git -c init.defaultBranch=main init -q; \
             for n in one two; do echo $n > file; git add file; \
             git -c user.name=t -c user.email=t@localhost commit -q -m $n; done; \
             git clone -q --bare . ../app.git; cd ..; \
             printf '#!/bin/sh\\nGIT_HTTP_EXPORT_ALL=1 GIT_PROJECT_ROOT=/workspace exec git http-backend\\n' > cgi-bin/git; \
             chmod +x cgi-bin/git")
        .await;
    let server = json!({"name": "git", "command": "exec python3 -m http.server --cgi 8000"});
    let server = sandbox.call("startBackgroundProcess", server).await.ok();
    let wait = json!({"processId": server["processId"], "port": 8000, "timeout": 60});
    assert_eq!(sandbox.call("waitForProcess", wait).await.ok()["outcome"], "met");
    let address = sandbox.sh("python3 -c 'import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); \
                              s.connect((\"192.0.2.1\", 9)); print(s.getsockname()[0])'");
    format!("http://{}:8000/cgi-bin/git/app.git", address.await.trim())
}

#[tokio::test]
async fn a_clone_is_as_deep_as_it_is_asked_for() {
    let stack = ContainerStack::shared();
    let server = stack.sandbox().await;
    let url = serve(&server).await;
    for (depth, commits) in [(Some(1), "1\n"), (None, "2\n")] {
        let mut arguments = json!({"gitUrl": url});
        if let Some(depth) = depth {
            arguments["gitDepth"] = json!(depth);
        }
        let sandbox = stack.unmade_sandbox();
        within("a clone", Duration::from_secs(120), sandbox.make(arguments)).await;
        let look = "cd app && git rev-list --count HEAD; cat file >&2";
        let told = sandbox.exec(json!({"command": look})).await;
        assert_eq!((&told["stdout"], &told["stderr"]), (&json!(commits), &json!("two\n")), "{told}");
    }
}
