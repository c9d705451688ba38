// A user of the API: it creates a project with a key, and with this key requests, lists, watches and releases an
// allocation. `api.ts` is generated from the OpenAPI document.
// Arguments: the URL of the control plane, and an SSH public key. The environment has the API key of an admin.
import createClient, { type Client } from "openapi-fetch";
import type { components, paths } from "./api.ts";

type Allocation = components["schemas"]["AllocationView"];

function connect(baseUrl: string, key: string): Client<paths> {
  return createClient<paths>({ baseUrl, headers: { Authorization: `Bearer ${key}` } });
}

// Return the data of a response, or throw the codes of its problem.
function dataOf<T>(answer: { data?: T; error?: components["schemas"]["Problem"] }): T {
  if (answer.error !== undefined) {
    throw new Error(answer.error.reasons.map((reason) => reason.code).join(", "));
  }
  return answer.data as T;
}

async function firstEvent(client: Client<paths>, allocation: string): Promise<string> {
  const { data: stream, error } = await client.GET("/v1/allocations/{allocation}/watch", {
    params: { path: { allocation } },
    parseAs: "stream",
  });
  if (error !== undefined || !stream) {
    throw new Error(error?.title ?? "the watch has no body");
  }
  let text = "";
  for await (const chunk of stream.pipeThrough(new TextDecoderStream())) {
    text += chunk;
    const found = /^event: (.+)$/m.exec(text);
    if (found?.[1] !== undefined) return found[1];
  }
  throw new Error("the watch ended without an event");
}

const [url, sshKey] = process.argv.slice(2) as [string, string];
const admin = connect(url, process.env["SLICEPLANE_API_KEY"] ?? "");
const project = dataOf(await admin.POST("/v1/projects", { body: { id: "typescript" } }));
const key = dataOf(
  await admin.POST("/v1/keys", { body: { name: "typescript", role: "caller", projects: [project.id] } }),
);
if (!("key" in key)) throw new Error("only the response of a dry run has no key");
const caller = connect(url, key.key);
const created: Allocation = dataOf(
  await caller.POST("/v1/allocations", {
    params: { header: { "Idempotency-Key": "first" } },
    body: { sku: "lab.small", ssh_authorized_keys: [sshKey] },
  }),
);
let listed: Allocation[];
do {
  // The list follows the ledger after some milliseconds.
  listed = dataOf(await caller.GET("/v1/allocations", { params: { query: { limit: 10 } } })).items;
} while (listed.length === 0);
const event = await firstEvent(caller, created.id);
const released = dataOf(
  await caller.DELETE("/v1/allocations/{allocation}", { params: { path: { allocation: created.id } } }),
);
console.log(JSON.stringify({ project: created.project, listed: listed.length, event, state: released.state }));
process.exit(0);
