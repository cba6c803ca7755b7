// The `openai` client from npm against a server: check_openai_client.mjs FOLDER BASE_URL, by check_openai_client.py.
import assert from 'node:assert'
import { createRequire } from 'node:module'

const [folder, baseURL] = process.argv.slice(2)
const { default: OpenAI } = await import(createRequire(folder + '/').resolve('openai'))
const client = new OpenAI.OpenAI({ baseURL, apiKey: 'none', maxRetries: 0 })
const ask = { model: 'm', temperature: 0, max_tokens: 16, messages: [{ role: 'user', content: 'What is the capital of France?' }] }

const text = (await client.chat.completions.create(ask)).choices[0].message.content
assert.match(text, /Paris/)
let streamed = ''
for await (const chunk of await client.chat.completions.create({ ...ask, stream: true })) streamed += chunk.choices[0]?.delta?.content ?? ''
assert.equal(streamed, text)
const format = { type: 'json_schema', json_schema: { name: 'c', schema: { type: 'object', properties: { ok: { type: 'boolean' } }, required: ['ok'] } } }
const made = JSON.parse((await client.chat.completions.create({ ...ask, response_format: format })).choices[0].message.content)
assert.equal(typeof made.ok, 'boolean')
await assert.rejects(client.chat.completions.create({ ...ask, temperature: -1 }), (error) => error.status === 400)
const vector = (await client.embeddings.create({ model: 'm', input: 'Paris' })).data[0].embedding
assert.ok(Math.abs(vector.reduce((sum, x) => sum + x * x, 0) - 1) < 1e-4)
const stopped = new AbortController()
const endless = client.completions.create({ model: 'm', prompt: 'Once', max_tokens: 900, stream: true, ignore_eos: true }, { signal: stopped.signal })
for await (const chunk of await endless) { stopped.abort(); break }
console.log('npm: chat, stream, JSON schema, error, embeddings, cancel')
