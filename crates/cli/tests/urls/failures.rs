//! What goes wrong with servers, credentials and objects: an error that says what to do, in time.

use crate::ground::Ground;
use crate::support::run;
use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::process::Command;
use std::time::{Duration, Instant};
use weald_testkit::link::{Link, LinkOptions};

/// Runs `command`, which must fail with status 2 and one line that has `words`, in 30 s.
#[track_caller]
fn must_fail(command: &mut Command, words: &str) {
    let start = Instant::now();
    let output = run(command);
    let (said, time) = (&output.stderr, start.elapsed());
    assert_eq!(
        (output.code, output.text().as_str()),
        (Some(2), ""),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains(words), "{words:?} is not in {said:?}");
    assert!(!said.contains("secret"), "{said}");
    assert!(time < Duration::from_secs(30), "{time:?}: {said}");
}

/// Would catch: an answer of a web server that is taken for an image, waits for long, or gives an
/// error that does not help.
#[test]
fn what_web_servers_answer_instead() {
    let ground = Ground::new(false);
    fs::write(ground.web.file("html"), "<!DOCTYPE html><p>Please log in.").expect("write");
    fs::write(ground.web.file("empty"), "").expect("write");
    fs::create_dir(ground.at("mnt")).expect("mkdir");
    for (path, words) in [
        ("none", "there is no such object (status 404)"),
        ("forbidden/x", "the server refuses access (status 403)"),
        ("closed/small", "check user and password of the URL"),
        ("page/x", "a page (text/html)"),
        ("html", "a page of HTML"),
        ("whole/small", "does not answer requests for a part"),
        ("busy/x", "overloaded (status 503)"),
        ("elsewhere/x", "403"),
        ("empty", "empty"),
    ] {
        let url = ground.web.url(path);
        for command in ["ls", "check"] {
            must_fail(ground.command().args([command, &url]), words);
        }
        must_fail(ground.command().args(["mount", &url, "mnt"]), words);
    }
    let closed = ground.web.url("closed/small");
    let wrong = closed.replace("http://", "http://me:secret-wrong@");
    must_fail(
        ground.command().args(["ls", &wrong]),
        "check user and password",
    );
    let right = closed.replace("http://", "http://me:secret%20word@");
    ground.weald(["ls", &right]).expect(0, "");
    ground
        .weald(["ls", &ground.web.url("moved/small")])
        .expect(0, "");
}

/// Would catch: a certificate that nobody has signed and that counts, and one of an authority of
/// the user that does not.
#[test]
fn certificates_count() {
    let ground = Ground::new(false);
    let url = ground.web.tls_url("small");
    must_fail(
        ground.command().args(["ls", &url]),
        "SSL_CERT_FILE names further ones",
    );
    let mut command = ground.command();
    command.env("SSL_CERT_FILE", ground.web.authority());
    run(command.args(["check", "-q", &url])).expect(0, "");
}

/// Would catch: credentials that are wrong, absent or for another bucket, and an endpoint that is
/// none.
#[test]
fn what_buckets_answer_instead() {
    let ground = Ground::new(false);
    let url = ground.bucket("small");
    let with = |name: &str, value: &str| {
        let mut command = ground.command();
        command.env(name, value);
        command
    };
    let ls = |command: &mut Command, words| must_fail(command.args(["ls", &url]), words);
    ls(
        &mut with("AWS_SECRET_ACCESS_KEY", "secret-wrong"),
        "AWS_SECRET_ACCESS_KEY does not fit",
    );
    ls(
        &mut with("AWS_ACCESS_KEY_ID", "nobody"),
        "does not know AWS_ACCESS_KEY_ID",
    );
    ls(&mut with("AWS_SKIP_SIGNATURE", "true"), "refuses access");
    let closed = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = closed.local_addr().expect("address").port();
    drop(closed);
    let nobody = format!("http://127.0.0.1:{port}");
    ls(
        &mut with("AWS_ENDPOINT_URL", &nobody),
        "see AWS_ENDPOINT_URL: Connection refused",
    );
    ls(
        &mut with("AWS_ENDPOINT_URL", "http://no.invalid"),
        "see AWS_ENDPOINT_URL",
    );
    ls(
        &mut with("AWS_ENDPOINT_URL", &ground.web.url("page")),
        "a page (text/html)",
    );
    let mut command = ground.command();
    command
        .env_remove("AWS_ACCESS_KEY_ID")
        .env_remove("AWS_SECRET_ACCESS_KEY");
    ls(&mut command, "there are no credentials");
    must_fail(
        ground.command().args(["ls", "s3://none/x"]),
        "no such bucket",
    );
    must_fail(
        ground.command().args(["ls", &ground.bucket("none")]),
        "no such object",
    );
    must_fail(
        ground.command().args(["ls", "s3://me:secret@bucket/x"]),
        "come from the environment",
    );
    for bad in [
        "s3://bucket",
        "https://",
        "http://127.0.0.1/",
        "http://a b/x",
    ] {
        must_fail(ground.command().args(["ls", bad]), "URL");
    }
}

/// Would catch: credentials of a profile that do not count.
#[test]
fn credentials_come_from_profiles_too() {
    let ground = Ground::new(false);
    let variables = ground.s3.environment();
    let value = |at: usize| variables[at].1.clone();
    fs::create_dir_all(ground.at("home/.aws")).expect("mkdir");
    let text = format!(
        "[work]\naws_access_key_id = {}\naws_secret_access_key={}\n",
        value(1),
        value(2)
    );
    fs::write(ground.at("home/.aws/credentials"), text).expect("write");
    let text = format!(
        "[profile work]\nregion = us-east-1\nendpoint_url = {}\n",
        value(0)
    );
    fs::write(ground.at("home/.aws/config"), text).expect("write");
    let mut command = ground.command();
    for (name, _) in &variables {
        command.env_remove(name);
    }
    command
        .env("AWS_PROFILE", "work")
        .args(["ls", &ground.bucket("small")]);
    run(&mut command).expect(0, "");
}

/// Would catch: an object that was cut and is read as far as it goes, or whose second copies are
/// used without a word.
#[test]
fn truncated_objects_are_refused() {
    let ground = Ground::new(true);
    let whole = fs::read(ground.at("large")).expect("read");
    let len = whole.len();
    for cut in [1, 64, 127, 128, 4096, 1 << 20, len / 2, len - 200, len - 1] {
        fs::write(ground.web.file("cut"), &whole[..cut]).expect("write");
        let output = ground.weald(["check", "-q", &ground.web.url("cut")]);
        // What stands at the end is there twice.
        let code = if len - cut <= 200 { 1 } else { 2 };
        assert_eq!(output.code, Some(code), "{cut}: {}", output.stderr);
        assert_eq!(output.stderr.lines().count(), 1, "{cut}: {}", output.stderr);
    }
}

/// Would catch: a server that says nothing, or endlessly, and a command that waits or eats memory.
#[test]
fn servers_that_do_not_come_to_an_end() {
    let ground = Ground::new(false);
    let silent = Link::start(ground.web.address(), LinkOptions::default()).expect("a link");
    silent.set_down(true);
    let url = format!("http://{}/small", silent.address());
    must_fail(
        ground.command().args(["--url-timeout", "3s", "ls", &url]),
        "answer",
    );
    for head in [
        "HTTP/1.1 403 No\r\n\r\n",
        "HTTP/1.1 206 Part\r\nContent-Range: bytes 0-99/100\r\n\r\n",
        "HTTP/1.1 206 Part\r\nContent-Range: bytes 0-0/99999999999999999\r\n\r\n",
        "garbage",
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}/x", listener.local_addr().expect("address"));
        std::thread::spawn(move || {
            for mut client in listener.incoming().flatten() {
                std::thread::spawn(move || {
                    let _ = client.write_all(head.as_bytes());
                    while client.write_all(&[b'x'; 1 << 16]).is_ok() {}
                });
            }
        });
        let script = "ulimit -v 2000000; exec \"$0\" --url-timeout 5s ls \"$1\"";
        let mut command = Command::new("bash");
        let weald = crate::support::weald_path();
        must_fail(
            command.args(["-c", script]).arg(weald).arg(&url),
            "weald: http://127.0.0.1:",
        );
    }
}
