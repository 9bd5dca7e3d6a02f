//! Real servers of objects: an S3 gateway on a directory (versitygw) and a web server (nginx).

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long a server may take to start.
const START_MAX: Duration = Duration::from_secs(20);

/// Name of the bucket of an [`S3Server`].
pub const BUCKET: &str = "bucket";

/// The access key of an [`S3Server`], and its secret.
pub const KEY: (&str, &str) = ("weald-key", "weald-secret");

/// A port that nobody uses now.
///
/// # Panics
/// If there is none.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("an address").port()
}

/// A running server, which ends when it is dropped.
#[derive(Debug)]
struct Running(Child);

impl Running {
    fn start(command: &mut Command, port: u16) -> Self {
        let name = command.get_program().to_string_lossy().into_owned();
        let child = command.stdin(Stdio::null()).spawn();
        let mut child = child.unwrap_or_else(|error| panic!("{name}: {error}: run 'make setup'"));
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let start = Instant::now();
        while TcpStream::connect(address).is_err() {
            let ended = child.try_wait().expect("state of the server");
            assert!(ended.is_none(), "{name} ended: {ended:?}");
            assert!(start.elapsed() < START_MAX, "{name} does not listen");
            sleep(Duration::from_millis(20));
        }
        Self(child)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An S3 server whose bucket is a directory.
#[derive(Debug)]
pub struct S3Server {
    dir: PathBuf,
    port: u16,
    running: Option<Running>,
}

impl S3Server {
    /// Starts a server with an empty bucket below `dir`.
    ///
    /// # Panics
    /// If the program is missing or does not start.
    pub fn start(dir: &Path) -> Self {
        fs::create_dir_all(dir.join(BUCKET)).expect("directory of the bucket");
        let mut server = Self {
            dir: dir.to_owned(),
            port: free_port(),
            running: None,
        };
        server.restart();
        server
    }

    /// Starts the server again on its port, after [`S3Server::kill`].
    ///
    /// # Panics
    /// If it does not start.
    pub fn restart(&mut self) {
        let mut command = Command::new(gateway());
        let log = fs::File::create(self.dir.with_extension("log")).expect("log of the server");
        command
            .args(["--port", &format!("127.0.0.1:{}", self.port), "posix"])
            .arg(&self.dir)
            .env("ROOT_ACCESS_KEY", KEY.0)
            .env("ROOT_SECRET_KEY", KEY.1)
            .stderr(log.try_clone().expect("log"))
            .stdout(log);
        self.running = Some(Running::start(&mut command, self.port));
    }

    /// Ends the server with SIGKILL; its bucket stays.
    pub fn kill(&mut self) {
        self.running = None;
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    /// The requests since the server was started, a line each with status, method and path.
    ///
    /// # Panics
    /// If its log cannot be read.
    pub fn requests(&self) -> Vec<String> {
        let log = fs::read_to_string(self.dir.with_extension("log")).expect("log of requests");
        let is_request = |line: &&str| line.contains(&format!("/{BUCKET}"));
        log.lines().filter(is_request).map(str::to_owned).collect()
    }

    /// The file of an object.
    pub fn file(&self, key: &str) -> PathBuf {
        self.dir.join(BUCKET).join(key)
    }

    /// Variables of the environment that lead to the server.
    pub fn environment(&self) -> [(&'static str, String); 3] {
        [
            ("AWS_ENDPOINT_URL", format!("http://{}", self.address())),
            ("AWS_ACCESS_KEY_ID", KEY.0.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", KEY.1.to_owned()),
        ]
    }
}

/// The program of the S3 server: where `scripts/setup.sh` puts it, or in PATH.
fn gateway() -> PathBuf {
    let target = crate::command::weald_path();
    let tools = target.ancestors().map(|dir| dir.join("tools/versitygw"));
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/versitygw");
    let mut places = tools.chain([root]);
    places
        .find(|path| path.is_file())
        .unwrap_or_else(|| "versitygw".into())
}

/// A web server for a directory.
#[derive(Debug)]
pub struct WebServer {
    dir: PathBuf,
    port: u16,
    tls_port: u16,
    running: Option<Running>,
}

/// Makes an authority `ca.pem`, and a certificate of this machine by it.
const CERTIFY: &str = "
    key='-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes'
    openssl req -x509 $key -keyout ca.key -out ca.pem -days 2 -subj /CN=authority
    openssl req $key -keyout tls.key -out tls.csr -subj /CN=machine
    echo subjectAltName=IP:127.0.0.1 > extension
    openssl x509 -req -in tls.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 \
        -extfile extension -out tls.pem";

/// What the server does with some paths, besides serving files with ranges.
const LOCATIONS: &str = "
    location /whole/ { alias FILES/; max_ranges 0; }
    location /page/ { default_type text/html; return 200 '<!DOCTYPE html><p>Please log in.'; }
    location /forbidden/ { return 403 '<html>no'; }
    location /busy/ { return 503; }
    location /elsewhere/ { return 302 /; }
    location /moved/ { rewrite ^/moved/(.*)$ /$1 redirect; }
    location /closed/ { alias FILES/; auth_basic x; auth_basic_user_file DIR/users; }
";

impl WebServer {
    /// Starts a server for the files in `dir/files`, which it makes.
    ///
    /// # Panics
    /// If the program is missing or does not start.
    pub fn start(dir: &Path) -> Self {
        fs::create_dir_all(dir.join("files")).expect("directory of files");
        fs::write(dir.join("users"), "me:{PLAIN}secret word\n").expect("users");
        let made = Command::new("bash")
            .args(["-ec", CERTIFY])
            .current_dir(dir)
            .output()
            .expect("bash");
        assert!(made.status.success(), "openssl: {made:?}");
        let (port, tls_port) = (free_port(), free_port());
        let shown = dir.display().to_string();
        let locations = LOCATIONS.replace("FILES", &format!("{shown}/files"));
        let locations = locations.replace("DIR", &shown);
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|kind| format!("{kind}_temp_path {shown}/temporary;\n"))
            .concat();
        let text = format!(
            "daemon off; master_process off; pid {shown}/pid; error_log {shown}/errors;\n\
             events {{}}\nhttp {{ access_log {shown}/requests; {temporary}\n\
             server {{ listen 127.0.0.1:{port}; listen 127.0.0.1:{tls_port} ssl;\n\
             ssl_certificate {shown}/tls.pem; ssl_certificate_key {shown}/tls.key;\n\
             root {shown}/files; {locations} }} }}\n"
        );
        fs::write(dir.join("nginx.conf"), text).expect("configuration");
        let mut server = Self {
            dir: dir.to_owned(),
            port,
            tls_port,
            running: None,
        };
        server.restart();
        server
    }

    /// Starts the server again on its port, after [`WebServer::kill`].
    ///
    /// # Panics
    /// If it does not start.
    pub fn restart(&mut self) {
        let sbin = Path::new("/usr/sbin/nginx");
        let program = if sbin.exists() {
            sbin
        } else {
            Path::new("nginx")
        };
        let mut command = Command::new(program);
        command
            .arg("-e")
            .arg(self.dir.join("errors"))
            .arg("-c")
            .arg(self.dir.join("nginx.conf"));
        self.running = Some(Running::start(&mut command, self.port));
    }

    /// Ends the server with SIGKILL.
    pub fn kill(&mut self) {
        self.running = None;
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    /// The URL of `path`.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}/{path}", self.address())
    }

    /// The URL of `path` with TLS.
    pub fn tls_url(&self, path: &str) -> String {
        format!("https://127.0.0.1:{}/{path}", self.tls_port)
    }

    /// The authority of its certificate.
    pub fn authority(&self) -> PathBuf {
        self.dir.join("ca.pem")
    }

    /// The file that the server shows as `/name`.
    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.join("files").join(name)
    }

    /// Requests so far.
    ///
    /// # Panics
    /// If its log cannot be read.
    pub fn request_count(&self) -> usize {
        let log = fs::read(self.dir.join("requests")).expect("log of requests");
        log.iter().filter(|byte| **byte == b'\n').count()
    }
}
