// Serves a folder on this machine as any host of static files would: without special headers, and under /path/ too.
//
//     node serve.mjs FOLDER PORT
import { createReadStream, statSync } from "node:fs";
import { createServer } from "node:http";
import { basename, extname, join, normalize } from "node:path";
import { fileURLToPath } from "node:url";

const TYPES = { ".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".wasm": "application/wasm" };

/** The server of `folder`, its address with a path of its own, the files that it has sent, and by how many milliseconds it delays which names. */
export function serve(folder, port = 0) {
  const [sent, slow] = [[], new Map()];
  const server = createServer((request, response) => {
    // What names no file is answered with 404, also if it is no path at all or a folder without its slash.
    const found = (() => {
      try {
        const path = decodeURIComponent(request.url.split("?")[0]).replace(/^\/path\//, "/");
        const file = join(folder, normalize(path.endsWith("/") ? path + "index.html" : path));
        const status = statSync(file);
        return status.isFile() ? { file, size: status.size } : undefined;
      } catch {
        return undefined;
      }
    })();
    if (found === undefined) {
      response.writeHead(404).end();
      return;
    }
    const { file, size } = found;
    sent.push(file);
    response.writeHead(200, { "content-type": TYPES[extname(file)] ?? "application/octet-stream", "content-length": size });
    // The file may go while it is sent: that ends this answer.
    const send = () => createReadStream(file).on("error", () => response.destroy()).pipe(response);
    setTimeout(send, slow.get(basename(file)) ?? 0);
  });
  return new Promise((resolve, reject) => {
    server.on("error", reject);
    server.listen(port, "127.0.0.1", () => resolve({ server, sent, slow, url: `http://127.0.0.1:${server.address().port}/path/` }));
  });
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const port = Number(process.argv[3] ?? 8000);
  try {
    const { url } = await serve(process.argv[2], port);
    console.log(`the page is at ${new URL("/", url)} (Ctrl-C ends it)`);
  } catch (error) {
    console.error(`error: cannot listen at port ${port} of this machine (${error.code}); give another one with --port, or --port 0 for a free one`);
    process.exitCode = 1;
  }
}
