// Requests that a compiler must refuse: each line with a comment names what the OpenAPI document does not have.
import createClient from "openapi-fetch";
import type { paths } from "./api.ts";

const client = createClient<paths>({ baseUrl: "http://127.0.0.1" });
await client.POST("/v1/allocations", { body: { sku: "lab.small", ssh_keys: [] } }); // refused
await client.POST("/v1/keys", { body: { name: "ci", role: "owner" } }); // refused
await client.GET("/v1/allocations", { params: { query: { page: 2 } } }); // refused
await client.GET("/v1/allocation"); // refused
const { data } = await client.GET("/v1/projects/{project}", { params: { path: { project: "own" } } });
console.log(data?.owner); // refused
