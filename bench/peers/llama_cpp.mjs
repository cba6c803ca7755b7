// usage: node llama_cpp.mjs FOLDER MODEL THREADS WARM TOKENS CONTEXT PROMPT
// Decodes WARM + TOKENS tokens greedily with the node-llama-cpp in FOLDER, through mmap, at the binding's defaults
// otherwise, and prints one JSON object whose figures are those of the last TOKENS. Started by llama_cpp.sh.
import {readFileSync} from "node:fs";
import {join} from "node:path";
import {pathToFileURL} from "node:url";

const [folder, modelPath, ...rest] = process.argv.slice(2);
const [threads, warm, tokens, contextSize] = rest.slice(0, 4).map(Number);
const prompt = rest[4];
if (!prompt || ![threads, warm, tokens, contextSize].every((n) => Number.isInteger(n) && n > 0)) {
    console.error("usage: llama_cpp.mjs FOLDER MODEL THREADS WARM TOKENS CONTEXT PROMPT");
    process.exit(2);
}

const field = (file, key) => Number((readFileSync(file, "utf8").match(new RegExp(`^${key}:\\s*(\\d+)`, "m")) ?? [0, 0])[1]);
const mark = () => {
    const usage = process.resourceUsage();  // microseconds
    return {
        seconds: performance.now() / 1000,
        read: field("/proc/self/io", "read_bytes"),
        faults: usage.majorPageFault,
        cpu: (usage.userCPUTime + usage.systemCPUTime) / 1e6
    };
};

const begin = mark();
const {getLlama, LlamaLogLevel} = await import(pathToFileURL(join(folder, "node_modules/node-llama-cpp/dist/index.js")));
const llama = await getLlama({gpu: false, build: "never", logLevel: LlamaLogLevel.error, maxThreads: threads});
const model = await llama.loadModel({modelPath, gpuLayers: 0, useMmap: true, ignoreMemorySafetyChecks: true});
const context = await model.createContext({contextSize, threads, ignoreMemorySafetyChecks: true});
const sequence = context.getSequence();

let input = model.tokenize(prompt);
let count = 0;
let first, steady, end;
while (!end) {
    // A round ends at an end-of-generation token; decoding goes on after it.
    for await (const token of sequence.evaluate(input, {temperature: 0, yieldEogToken: true})) {
        ++count;
        first ??= mark();
        if (count === warm) steady = mark();
        if (count === warm + tokens) {
            end = mark();
            break;
        }
        input = [token];
    }
}
console.log(JSON.stringify({
    tokens_per_s: tokens / (end.seconds - steady.seconds),
    bytes_per_token: (end.read - steady.read) / tokens,
    major_faults_per_token: (end.faults - steady.faults) / tokens,
    cpu_s_per_token: (end.cpu - steady.cpu) / tokens,
    first_token_ms: 1000 * (first.seconds - begin.seconds),
    peak_rss_bytes: 1024 * field("/proc/self/status", "VmHWM")
}));
process.exit(0);
