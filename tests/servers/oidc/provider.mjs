// OpenID provider of the tests: the package oidc-provider with clients and users that the tests need.
//
// Usage: node provider.mjs PACKAGES PORT AUDIENCE [CERTIFICATE KEY]. PACKAGES is the folder that contains node_modules.
// Each line of standard input is a command, a JSON object, and is answered with one line on standard output:
//   {"keys": [...]}      sign with these private keys (JWK) and publish their public halves; others are withdrawn
//   {"listen": true}     accept connections; false: close them all, as if the provider were down
// The program ends with its standard input.

import { readFileSync } from 'node:fs'
import { createServer as createHttp } from 'node:http'
import { createServer as createHttps } from 'node:https'
import { createRequire } from 'node:module'
import { createInterface } from 'node:readline'
import { pathToFileURL } from 'node:url'

const [packages, port, audience, certificate, key] = process.argv.slice(2)
const { default: Provider } = await import(
  pathToFileURL(createRequire(`${packages}/package.json`).resolve('oidc-provider'))
)
const issuer = `${certificate ? 'https' : 'http'}://127.0.0.1:${port}`
// Workloads sign in with a secret, each with the algorithm in its name.
const algorithms = { 'ci-rs256': 'RS256', 'ci-es256': 'ES256', 'ci-eddsa': 'EdDSA' }
const groups = { alice: ['/vision'], olivia: ['/operators'], mallory: [] }

function provider(keys) {
  return new Provider(issuer, {
    jwks: { keys },
    clients: [
      ...Object.keys(algorithms).map((id) => ({
        client_id: id,
        client_secret: `secret-of-${id}`,
        grant_types: ['client_credentials'],
        redirect_uris: [],
        response_types: [],
      })),
      {
        client_id: 'sliceplane',
        application_type: 'native',
        token_endpoint_auth_method: 'none',
        grant_types: ['urn:ietf:params:oauth:grant-type:device_code', 'authorization_code'],
        // The port of a loopback address is not compared (RFC 8252, section 7.3).
        redirect_uris: ['http://127.0.0.1/ui/login/corp/return', 'http://localhost/ui/login/corp/return'],
        response_types: ['code'],
      },
    ],
    cookies: { keys: ['cookies of one test session'] },
    findAccount: (_context, id) => ({ accountId: id, claims: () => ({ sub: id }) }),
    // Claims in the form that Keycloak gives them.
    extraTokenClaims: (_context, token) =>
      token.kind === 'ClientCredentials'
        ? { realm_access: { roles: ['slice-workload'] } }
        : { groups: groups[token.accountId] },
    features: {
      clientCredentials: { enabled: true },
      deviceFlow: { enabled: true },
      resourceIndicators: {
        enabled: true,
        defaultResource: () => audience,
        useGrantedResource: () => true,
        getResourceServerInfo: (_context, _resource, client) => ({
          audience,
          scope: 'slices',
          accessTokenFormat: 'jwt',
          accessTokenTTL: 600,
          jwt: { sign: { alg: algorithms[client.clientId] ?? 'RS256' } },
        }),
      },
    },
  })
}

// The package prints its notices to standard output, which is for answers.
console.info = console.error

let handle
const answer = (request, response) => handle(request, response)
const server = certificate
  ? createHttps({ cert: readFileSync(certificate), key: readFileSync(key) }, answer)
  : createHttp(answer)

for await (const line of createInterface({ input: process.stdin })) {
  const command = JSON.parse(line)
  if (command.keys) handle = provider(command.keys).callback()
  if (command.listen === true) await new Promise((done) => server.listen(port, '127.0.0.1', done))
  if (command.listen === false) {
    const closed = new Promise((done) => server.close(done))
    server.closeAllConnections()
    await closed
  }
  process.stdout.write('done\n')
}
process.exit()
