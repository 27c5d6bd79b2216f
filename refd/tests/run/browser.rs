//! A browser as a person uses it: what is typed and clicked goes to Chromium through its driver, over WebDriver, which is
//! plain HTTP and JSON.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use serde_json::{Value, json};

/// The browser keeps to itself: no first run, no updates, no requests of its own.
const FLAGS: [&str; 11] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
    "--window-size=1280,1900",
];

/// What an element is called in WebDriver.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// How long the page may take for anything.
const PATIENCE: Duration = Duration::from_secs(30);

/// Between two looks at it.
const LOOK: Duration = Duration::from_millis(50);

pub(crate) struct Browser {
    driver: Child,
    port: u16,
    session: String,
}

fn installed<'a>(names: &[&'a str]) -> Option<&'a str> {
    let runs = |name: &&&str| {
        let mut command = Command::new(name);
        command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    names.iter().find(runs).copied()
}

impl Browser {
    /// A browser with a profile of its own in `dir`, which is also where it downloads to; none, and why, if there is none
    /// on this machine. Where it has to be there (`RON_BROWSER=required`), that is a failure.
    pub(crate) fn start(dir: &Path, is_dark: bool) -> Option<Browser> {
        let browsers = ["chromium", "chromium-browser", "google-chrome", "chrome"];
        let (Some(browser), Some(driver)) = (installed(&browsers), installed(&["chromedriver"])) else {
            let is_required = std::env::var_os("RON_BROWSER").is_some_and(|value| value == "required");
            assert!(!is_required, "RON_BROWSER=required, and Chromium or chromedriver is not installed");
            eprintln!("skipped: Chromium and chromedriver are not both installed");
            return None;
        };
        let which = Command::new("sh").args(["-c", &format!("command -v {browser}")]).output().unwrap();
        let path = String::from_utf8(which.stdout).unwrap().trim().to_owned();
        // A group of its own: whatever the driver has started can be ended with it.
        let mut command = Command::new(driver);
        command.arg("--port=0").stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
        let mut driver = command.spawn().unwrap();
        let lines = BufReader::new(driver.stdout.take().unwrap()).lines();
        let port = lines.map_while(Result::ok).find_map(|line| {
            line.split_once("started successfully on port ")?.1.trim_end_matches('.').parse().ok()
        });
        let mut browser =
            Browser { driver, port: port.expect("the driver says its port"), session: String::new() };
        let profile = format!("--user-data-dir={}", dir.join(format!("profile-{is_dark}")).display());
        let flags: Vec<&str> = FLAGS.into_iter().chain([&*profile]).collect();
        let wanted = json!({"capabilities": {"alwaysMatch": {
            "goog:chromeOptions": {"binary": path, "args": flags},
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }}});
        let session = browser.ask("POST", "/session", &wanted);
        browser.session = format!("/session/{}", session["sessionId"].as_str().unwrap());
        let scheme = if is_dark { "dark" } else { "light" };
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        browser.tell("Emulation.setEmulatedMedia", &features);
        let downloads = json!({"behavior": "allow", "downloadPath": dir.display().to_string()});
        browser.tell("Browser.setDownloadBehavior", &downloads);
        Some(browser)
    }

    fn ask(&self, method: &str, path: &str, body: &Value) -> Value {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE * 2)).unwrap();
        let body = if method == "POST" { body.to_string() } else { String::new() };
        let head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
        write!(stream, "{head}Content-Length: {}\r\n\r\n{body}", body.len()).unwrap();
        // The driver says how long its answer is, and keeps the connection.
        let mut stream = BufReader::new(stream);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert_ne!(stream.read_line(&mut head).unwrap(), 0, "{method} {path}: {head}");
        }
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>())?.ok()
        });
        let mut answer = vec![0; length.expect("a length")];
        stream.read_exact(&mut answer).unwrap();
        let body = String::from_utf8(answer).unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{method} {path}: {head}{body}");
        serde_json::from_str::<Value>(&body).unwrap()["value"].take()
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        self.ask("POST", &format!("{}{path}", self.session), body)
    }

    fn tell(&self, command: &str, parameters: &Value) {
        self.post("/goog/cdp/execute", &json!({"cmd": command, "params": parameters}));
    }

    pub(crate) fn open(&self, url: &str) {
        self.post("/url", &json!({"url": url}));
    }

    fn element(&self, id: &str) -> String {
        let found = self.post("/element", &json!({"using": "css selector", "value": id}));
        format!("/element/{}", found[ELEMENT].as_str().unwrap())
    }

    pub(crate) fn click(&self, selector: &str) {
        self.post(&format!("{}/click", self.element(selector)), &json!({}));
    }

    /// Types into a field what replaces what is there; into that of a file, its path.
    pub(crate) fn fill(&self, selector: &str, text: &str) {
        let element = self.element(selector);
        if self.run(&format!("return document.querySelector('{selector}').type")) != "file" {
            self.post(&format!("{element}/clear"), &json!({}));
        }
        self.post(&format!("{element}/value"), &json!({"text": text}));
    }

    pub(crate) fn run(&self, script: &str) -> Value {
        self.post("/execute/sync", &json!({"script": script, "args": []}))
    }

    pub(crate) fn text(&self, selector: &str) -> String {
        let text = self.run(&format!("return document.querySelector('{selector}').innerText"));
        text.as_str().unwrap_or_default().to_owned()
    }

    /// The text of an element once it has these words.
    pub(crate) fn reads(&self, selector: &str, words: &str) -> String {
        let mut text = String::new();
        for _ in 0..PATIENCE.as_millis() / LOOK.as_millis() {
            text = self.text(selector);
            if text.contains(words) {
                return text;
            }
            std::thread::sleep(LOOK);
        }
        panic!("{selector} does not say {words:?} but {text:?}");
    }

    fn log(&self, kind: &str) -> Vec<String> {
        let lines = self.post("/se/log", &json!({"type": kind}));
        let lines = lines.as_array().unwrap().iter();
        lines.map(|line| line["message"].as_str().unwrap().to_owned()).collect()
    }

    /// What the page complained about in the console since the last time.
    pub(crate) fn complaints(&self) -> Vec<String> {
        self.log("browser")
    }

    /// Every address that was asked since the last time, but for pages of the browser's own, such as that of a new tab.
    pub(crate) fn requests(&self) -> Vec<String> {
        let events = self.log("performance").into_iter().filter_map(|event| {
            let event: Value = serde_json::from_str(&event).ok()?;
            let message = &event["message"];
            (message["method"] == "Network.requestWillBeSent")
                .then(|| message["params"]["request"]["url"].as_str().unwrap().to_owned())
        });
        events.filter(|url| !url.starts_with("chrome://")).collect()
    }

    /// A picture of the page into a directory, if `RON_SCREENSHOT` names one.
    pub(crate) fn screenshot(&self, name: &str) {
        let Some(dir) = std::env::var_os("RON_SCREENSHOT") else { return };
        let png = self.ask("GET", &format!("{}/screenshot", self.session), &Value::Null);
        // Base64, which the tools of the system read too.
        let path = Path::new(&dir).join(name);
        let mut decoded = Command::new("base64")
            .arg("-d")
            .stdin(Stdio::piped())
            .stdout(fs::File::create(path).unwrap())
            .spawn()
            .unwrap();
        decoded.stdin.take().unwrap().write_all(png.as_str().unwrap().as_bytes()).unwrap();
        assert!(decoded.wait().unwrap().success());
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The driver ends the browser as a person would; if it cannot, its group is ended.
        if let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.port)) {
            let _ = write!(
                stream,
                "DELETE {} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
                self.session
            );
            // One byte of the answer says that it is done.
            let _ = stream.set_read_timeout(Some(Duration::from_secs(10)));
            let _ = stream.read(&mut [0]);
        }
        let group = format!("-{}", self.driver.id());
        let _ = Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status();
        let _ = self.driver.wait();
    }
}
