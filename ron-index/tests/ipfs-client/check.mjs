// Who has a CID, and where a peer is, as a stock IPFS client asks it of a running node.
//
//   node check.mjs URL CID     URL of a node that answers /routing/v1, CID of what another node provides

import assert from 'node:assert/strict'

// Node 20 has it not yet, and the client needs it.
Promise.withResolvers ??= function () {
  let resolve, reject
  const promise = new Promise((yes, no) => { resolve = yes; reject = no })
  return { promise, resolve, reject }
}

const { delegatedRoutingV1HttpApiClient } = await import('@helia/delegated-routing-v1-http-api-client')
const { defaultLogger } = await import('@libp2p/logger')
const { CID } = await import('multiformats/cid')

const [url, cid] = process.argv.slice(2)
const client = delegatedRoutingV1HttpApiClient({ url, cacheTTL: 0 })({ logger: defaultLogger() })
await client.start()

async function all (found) {
  const records = []
  for await (const record of found) records.push(record)
  return records
}

const content = CID.parse(cid)
const found = await all(client.getProviders(content))
assert.equal(found.length, 1, 'one node provides it')
const [provider] = found
assert.equal(provider.Schema, 'peer')
assert.equal(provider.ID.multihash.code, 0, 'its id is its key, as libp2p writes it')
assert(provider.Addrs.length > 0 && provider.Addrs.every(addr => /^\/ip4\/127\.0\.0\.1\/tcp\/\d+$/.test(`${addr}`)), `${provider.Addrs}`)
console.log(`provider ${provider.ID} at ${provider.Addrs}`)

assert.equal((await all(client.getProviders(content, { filterAddrs: ['tcp'] }))).length, 1)
assert.equal((await all(client.getProviders(content, { filterAddrs: ['ip6'] }))).length, 0, 'filters are heard')
assert.equal((await all(client.getProviders(content, { filterProtocols: ['transport-bitswap'] }))).length, 0)

// What nobody has is an empty answer and no error, whatever the hash.
for (const absent of [
  'bafkr4ibcw7tcmuwmsjcy3ewyvfm4qsg74l7d7r7edt3kkl436hiko5zxlm',
  'bafkreigh2akiscaildcqabsyg3dfr6chu3fgpregiymsck7e7aqa4s52zy',
  'QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N'
]) {
  assert.deepEqual(await all(client.getProviders(CID.parse(absent))), [], absent)
}

const peers = await all(client.getPeers(provider.ID))
assert.equal(peers.length, 1, 'a provider is a peer that can be found')
assert(peers[0].ID.equals(provider.ID), `${peers[0].ID}`)
assert.deepEqual(peers[0].Addrs.map(String), provider.Addrs.map(String))
console.log(`peer ${peers[0].ID} at ${peers[0].Addrs}`)
const stranger = CID.parse('k51qzi5uqu5dlvj2baxnqndepeb86cbk3ng7n3i46uzyxzyqj2xjonzllnv0v8')
assert.deepEqual(await all(client.getPeers(stranger)), [], 'a peer that nobody knows')

await client.stop()
console.log('all held')
