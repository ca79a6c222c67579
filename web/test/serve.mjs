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
    const path = decodeURIComponent(request.url.split("?")[0]).replace(/^\/path\//, "/");
    const file = join(folder, normalize(path.endsWith("/") ? path + "index.html" : path));
    try {
      const { size } = statSync(file);
      sent.push(file);
      response.writeHead(200, { "content-type": TYPES[extname(file)] ?? "application/octet-stream", "content-length": size });
      setTimeout(() => createReadStream(file).pipe(response), slow.get(basename(file)) ?? 0);
    } catch {
      response.writeHead(404).end();
    }
  });
  return new Promise((resolve) => {
    server.listen(port, "127.0.0.1", () => resolve({ server, sent, slow, url: `http://127.0.0.1:${server.address().port}/path/` }));
  });
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const { url } = await serve(process.argv[2], Number(process.argv[3] ?? 8000));
  console.log(`the page is at ${new URL("/", url)} (Ctrl-C ends it)`);
}
