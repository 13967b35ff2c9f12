# SPDX-License-Identifier: Apache-2.0
"""An object store that lies: a pull is whole or absent, keys stay secret, and no file is outside of the target."""

import json
import os
import random
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from inputs import NEWEST, sealer
from text import TEXTS, hostile

BUCKET = "models"
SECRETS = {"AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI", "AWS_SESSION_TOKEN": "FwoGZXIvYXdzEBYa"}


class Store(ThreadingHTTPServer):
    """Serves the objects {key: bytes} of the bucket "models" as S3 does, except that `lie` may change an answer."""

    daemon_threads = True

    def __init__(self, objects, lie):
        super().__init__(("127.0.0.1", 0), Handler)
        self.objects, self.lie, self.requests = objects, lie, []
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def environment(self):
        return SECRETS | {"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_REGION": "us-east-1",
                          "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{self.server_port}", "no_proxy": "*"}

    def handle_error(self, *_):
        pass  # the client has gone

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()


class Answer:
    def __init__(self, status, body=b"", headers=()):
        self.status, self.body, self.headers = status, body, dict(headers)
        self.times = 1      # that the body is sent
        self.length = None  # of Content-Length, if it is to be another than the body's
        self.raw = None     # instead of HTTP


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 20

    def log_message(self, *_):
        pass

    def do_GET(self):
        url = urlsplit(self.path)
        query = parse_qs(url.query, keep_blank_values=True)
        bucket, _, key = unquote(url.path).lstrip("/").partition("/")
        self.server.requests.append((self.command, bucket, key))
        if "list-type" in query:
            self.send(self.server.lie("list", self.listing(query)))
        elif "uploads" in query:
            self.send(self.server.lie("list", Answer(200, b"<ListMultipartUploadsResult/>")))
        else:
            self.send(self.server.lie("manifest" if key.endswith("manifest.json") else "file", self.object(key)))

    do_HEAD = do_GET

    def do_PUT(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        bucket, _, key = unquote(urlsplit(self.path).path).lstrip("/").partition("/")
        self.server.requests.append(("PUT", bucket, key))
        answer = self.server.lie("put", Answer(200, headers={"ETag": '"x"'}))
        if answer.status == 200 and bucket == BUCKET:
            self.server.objects[key] = body
        self.send(answer)

    def do_DELETE(self):
        self.send(Answer(204))

    def object(self, key):
        data = self.server.objects.get(key)
        if data is None:
            return Answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        if self.headers.get("Range"):
            begin, end = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
            end = min(end, len(data) - 1)
            headers = {"Content-Range": f"bytes {begin}-{end}/{len(data)}", "ETag": '"e"'}
            return Answer(206, data[begin:end + 1], headers)
        return Answer(200, data, {"ETag": '"e"'})

    def listing(self, query):
        prefix = query.get("prefix", [""])[0]
        keys = [key for key in self.server.objects if key.startswith(prefix)]
        folders = {prefix + key[len(prefix):].split("/")[0] + "/" for key in keys if "/" in key[len(prefix):]}
        if not query.get("delimiter"):
            folders = set()
        keys = [key for key in keys if not any(key.startswith(folder) for folder in folders)]
        rows = [f"<Contents><Key>{escape(key)}</Key><Size>{len(self.server.objects[key])}</Size></Contents>"
                for key in keys]
        rows += [f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>" for folder in folders]
        return Answer(200, ("<ListBucketResult><IsTruncated>false</IsTruncated>" + "".join(rows)
                            + "</ListBucketResult>").encode())

    def send(self, answer):
        if answer.raw is not None:
            self.wfile.write(answer.raw)
            self.close_connection = True
            return
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        length = len(answer.body) * answer.times if answer.length is None else answer.length
        self.send_header("Content-Length", str(length))
        self.end_headers()
        for _ in range(answer.times if self.command != "HEAD" else 0):
            self.wfile.write(answer.body)
        self.close_connection = length != len(answer.body)


def flip(rng, answer):
    if answer.body:
        at = rng.randrange(len(answer.body))
        answer.body = answer.body[:at] + bytes([answer.body[at] ^ 1 << rng.randrange(8)]) + answer.body[at + 1:]


def short(rng, answer):
    answer.body = answer.body[:rng.randrange(len(answer.body) + 1)]


def cut(rng, answer):
    answer.length = len(answer.body)
    short(rng, answer)


def lengthen(rng, answer):
    answer.body += rng.randbytes(rng.choice((1, 1000, 1 << 20)))


def claim(rng, answer):
    answer.length = rng.choice((0, 1, 1 << 40, 1 << 62, 1 << 64, -1))


def other_range(rng, answer):
    answer.headers["Content-Range"] = rng.choice(("bytes 5-9/10", "bytes 0-0/*", "x", f"bytes 0-{1 << 63}/{1 << 63}"))


def other_status(rng, answer):
    answer.status = rng.choice((200, 204, 206, 304, 400, 403, 404, 412, 416))
    if answer.status >= 400:
        text = "".join(text for text in rng.sample(TEXTS, 4) if text not in ("\0", "\ud800"))
        answer.body = f"<Error><Code>{escape(text)}</Code><Message>{escape(text)}</Message></Error>".encode()


def redirect(rng, answer):
    answer.status = rng.choice((301, 302, 303, 307, 308))
    answer.headers["Location"] = rng.choice(("/stolen/x", "http://127.0.0.1:1/stolen/x", "file:///etc/passwd"))


def encoding(rng, answer):
    answer.headers["Content-Encoding"] = rng.choice(("gzip", "br", "x"))


def etag(rng, answer):
    answer.headers["ETag"] = f'"{rng.random()}"'


def garbage(rng, answer):
    answer.raw = rng.choice((b"", b"hello\n", rng.randbytes(1000), b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 300000))


def flood(rng, answer):
    # Not as one text: the memory of this process is counted for a program that it starts.
    answer.body = rng.choice((b"<a>", b"[", b'{"":', b"<Contents><Key>x</Key></Contents>", b"a")) * (1 << 16)
    answer.times = 256


def honest(rng, answer):
    pass


LIES = (honest, flip, flip, short, cut, lengthen, claim, other_range, other_status, redirect, encoding, etag, garbage,
        flood)


def objects(trial):
    """The step as objects, with a right manifest or one with hostile names, sizes or ids."""
    source = trial.inputs["run"] + "/" + NEWEST
    files = {}
    for name in os.listdir(source):
        with open(os.path.join(source, name), "rb") as file:
            files[name] = file.read()
    manifest = json.loads(files["manifest.json"])
    save, seal = manifest["save_id"], sealer()
    if seal and trial.rng.random() < 0.3:
        place, member = trial.rng.choice(((manifest, "save_id"), (manifest, "step"), (manifest["files"][0], "name"),
                                          (manifest["files"][0], "bytes"), (manifest["texts"][0], "bytes")))
        old, place[member] = place[member], (hostile(trial.rng) if isinstance(place[member], str)
                                             else trial.rng.choice((0, -1, 7, 1 << 40, 1 << 62, 1 << 64)))
        trial.note(f"{member} of the manifest is {place[member]!a} instead of {old!a}")
        files["manifest.json"] = seal(manifest)
    found = {f"run/{NEWEST}/{save}/{name}": data for name, data in files.items() if name != "manifest.json"}
    found[f"run/{NEWEST}/manifest.json"] = files["manifest.json"]
    for _ in range(trial.rng.choice((0, 0, 3))):
        found[f"run/{hostile(trial.rng).encode('utf-8', 'replace').decode()}/manifest.json"] = b"{}"
    return found


def liar(trial, kinds):
    """A function that lies about one kind of request, once or always."""
    kind, lie, always = trial.rng.choice(kinds), trial.rng.choice(LIES), trial.rng.random() < 0.6
    trial.note(f"{lie.__name__} of {kind}, {'always' if always else 'once'}")
    lies, rng = [], random.Random(trial.rng.random())

    def maybe(what, answer):
        if what == kind and (always or not lies):
            lies.append(what)
            lie(rng, answer)
        return answer

    return maybe


def check_secrets(trial, store, result):
    told = [name for name, secret in SECRETS.items() if secret in result.text]
    trial.expect(not told, f"{told} is printed")
    stolen = [request for request in store.requests if request[1] != BUCKET]
    trial.expect(not stolen, f"requests have left the bucket: {stolen[:3]}")


def pulls(trial):
    """A pull of a store that lies in one kind of answer."""
    target, served = trial.path("out/copy"), objects(trial)
    with Store(served, liar(trial, ("list", "manifest", "file", "file"))) as store:
        where = trial.rng.choice((f"s3://{BUCKET}/run", f"s3://{BUCKET}/run/{NEWEST}"))
        trial.run("ckpt", "inspect", where, environment=store.environment(), seconds=90)
        pulled = trial.run("ckpt", "pull", where, target, environment=store.environment(), seconds=90)
        check_secrets(trial, store, pulled)
    trial.expect(pulled.status == 0 or trial.notes[0].count("honest") == 0, "an honest store is refused")
    if pulled.status:
        trial.check_absent(target)
    else:
        for key in (key for key in served if key.startswith(f"run/{NEWEST}/")):
            with open(os.path.join(target, os.path.basename(key)), "rb") as file:
                trial.expect(file.read() == served[key], f"other bytes than the store has: {key}")
    trial.expect(os.listdir(trial.path("out")) in ([], ["copy"]), f"files outside: {os.listdir(trial.path('out'))}")


def pushes(trial):
    """A push to a store that lies: what is reported as there is there, the manifest last."""
    source = os.path.join(trial.inputs["run"], NEWEST)
    trial.keep(source)
    with Store({}, liar(trial, ("list", "manifest", "file", "put", "put"))) as store:
        pushed = trial.run("ckpt", "push", source, f"s3://{BUCKET}/run", environment=store.environment(), seconds=90)
        check_secrets(trial, store, pushed)
        puts = [key for command, _, key in store.requests if command == "PUT"]
        there = {os.path.basename(key): data for key, data in store.objects.items()}
    trial.expect(pushed.status == 0 or trial.notes[0].count("honest") == 0, "an honest store is refused")
    if pushed.status == 0:
        for name in os.listdir(source):
            with open(os.path.join(source, name), "rb") as file:
                trial.expect(there.get(name) == file.read(), f"pushed, exit status 0, and {name} is not there")
        trial.expect(puts[-1].endswith("manifest.json"), f"the manifest is not the last that was put: {puts}")


ATTACKS = [pulls, pushes]
