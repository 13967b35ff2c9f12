#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An S3 server that keeps the size of each object and discards its bytes: the cost of an upload is then only the
client's work and the network's. It checks nothing; fake_s3_server.h and moto do.

  s3_sink.py ADDRESS PORT     serves the bucket "models"; bytes sent to PORT + 1 are discarded without any protocol,
                              and answered by their number: the link's own speed
"""

import re
import socketserver
import sys
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PIECE = 1 << 18


class Bucket:
    def __init__(self):
        self.lock = threading.Lock()
        self.kept = {}     # key -> bytes, of small objects
        self.sizes = {}    # key -> size
        self.uploads = {}  # id -> {part: size}


BUCKET = Bucket()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def answer(self, status, body=b"", headers=()):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def target(self):
        """(key, query); the key is empty for the bucket itself."""
        url = urllib.parse.urlsplit(self.path)
        return (urllib.parse.unquote(url.path).partition("/models/")[2],
                dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True)))

    def take(self):
        """(size of the body, the body if it is small)."""
        left = size = int(self.headers.get("Content-Length") or 0)
        if size <= PIECE:
            return size, self.rfile.read(size)
        memory = memoryview(bytearray(PIECE))
        while left > 0:
            taken = self.rfile.readinto(memory[:min(left, PIECE)])
            if not taken:
                raise ConnectionError("the client is gone")
            left -= taken
        return size, None

    def do_GET(self):
        key, query = self.target()
        with BUCKET.lock:
            if "uploads" in query:
                return self.answer(200, b"<ListMultipartUploadsResult><IsTruncated>false</IsTruncated>"
                                        b"</ListMultipartUploadsResult>")
            if not key:
                found = "".join(f"<Contents><Key>{name}</Key><Size>{size}</Size></Contents>"
                                for name, size in sorted(BUCKET.sizes.items()) if name.startswith(query["prefix"]))
                return self.answer(200, f"<ListBucketResult>{found}<IsTruncated>false</IsTruncated>"
                                        "</ListBucketResult>".encode())
            kept = BUCKET.kept.get(key)
        if kept is None:
            return self.answer(404, b"<Error><Code>NoSuchKey</Code><Message>not kept</Message></Error>")
        begin = int(re.match(r"bytes=(\d+)-", self.headers.get("Range", "bytes=0-")).group(1))
        return self.answer(206, kept[begin:], [("Content-Range", f"bytes {begin}-{len(kept) - 1}/{len(kept)}")])

    def do_HEAD(self):
        key, _ = self.target()
        size = BUCKET.sizes.get(key)
        return self.answer(404) if size is None else self.answer(200, headers=[("Content-Length", str(size))])

    def do_PUT(self):
        key, query = self.target()
        size, body = self.take()
        with BUCKET.lock:
            if "uploadId" in query:
                BUCKET.uploads[query["uploadId"]][query["partNumber"]] = size
            elif self.headers.get("If-None-Match") == "*" and key in BUCKET.sizes:
                return self.answer(412, b"<Error><Code>PreconditionFailed</Code><Message>it is there</Message></Error>")
            else:
                BUCKET.sizes[key] = size
                if body is not None:
                    BUCKET.kept[key] = body
        return self.answer(200, headers=[("ETag", '"sink"')])

    def do_POST(self):
        key, query = self.target()
        self.take()
        with BUCKET.lock:
            if "uploads" in query:
                name = f"upload-{len(BUCKET.uploads)}"
                BUCKET.uploads[name] = {}
                return self.answer(200, f"<InitiateMultipartUploadResult><UploadId>{name}</UploadId>"
                                        "</InitiateMultipartUploadResult>".encode())
            BUCKET.sizes[key] = sum(BUCKET.uploads[query["uploadId"]].values())
        return self.answer(200, b"<CompleteMultipartUploadResult></CompleteMultipartUploadResult>")

    def do_DELETE(self):
        key, _ = self.target()
        with BUCKET.lock:
            BUCKET.sizes.pop(key, None)
            BUCKET.kept.pop(key, None)
        return self.answer(204)


class Plain(socketserver.BaseRequestHandler):
    def handle(self):
        memory, count = memoryview(bytearray(PIECE)), 0
        while taken := self.request.recv_into(memory):
            count += taken
        self.request.sendall(str(count).encode())


def main():
    address, port = sys.argv[1], int(sys.argv[2])
    plain = socketserver.ThreadingTCPServer((address, port + 1), Plain)
    threading.Thread(target=plain.serve_forever, daemon=True).start()
    ThreadingHTTPServer((address, port), Handler).serve_forever()


main()
