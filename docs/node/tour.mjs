// A client of bursar made from the .proto files alone: node tour.mjs DATASET RHO (docs/node-client.md says how to run it).
import { readFileSync } from "node:fs";
import { promisify } from "node:util";
import grpc from "@grpc/grpc-js";
import loader from "@grpc/proto-loader";

const { BURSAR_ADDRESS, BURSAR_TOKEN, BURSAR_CA, BURSAR_PROTO = "../../proto" } = process.env;
const [name, rho] = [process.argv[2], Number(process.argv[3])];
const files = ["bursar_proto/v1/catalog.proto", "bursar_proto/v1/fit.proto"];
const contract = loader.loadSync(files, { includeDirs: [BURSAR_PROTO], keepCase: true, longs: String, enums: String, defaults: true });
const { CatalogService, FitService } = grpc.loadPackageDefinition(contract).bursar.v1;
const metadata = new grpc.Metadata();
metadata.set("authorization", `Bearer ${BURSAR_TOKEN}`);
const [catalog, fits] = [CatalogService, FitService].map((one) => new one(BURSAR_ADDRESS, grpc.credentials.createSsl(readFileSync(BURSAR_CA))));
const ask = (service, method, request) => promisify(service[method]).call(service, request, metadata);

for (const data of (await ask(catalog, "ListDatasets", {})).datasets) console.log(`${data.name}: rho ${data.remaining.rho} left`);
const { dataset } = await ask(catalog, "GetDataset", { dataset: name });
const columns = dataset.columns.filter((column) => column.numeric).map((column) => column.name).slice(-2);
const dpem = { request_id: `node-${Date.now()}`, dataset: name, columns, n_components: 2, spend: { rho } };
const preview = await ask(fits, "Preview", { dpem });
console.log(`price: rho ${preview.price.rho}; ${preview.fits_left} like it are left; errors of means: ${preview.expected_mean_error}`);
for await (const event of fits.FitDPEM(dpem, metadata)) {
  if (event.receipt) console.log(`receipt: entry ${event.receipt.entry}, rho ${event.receipt.price.rho}`);
  if (event.model) console.log(`weights: ${event.model.weights.values}; means of ${columns}: ${event.model.means.values}`);
}
for (const one of (await ask(catalog, "ListReleases", {})).releases) console.log(`bought: entry ${one.entry}, ${one.method}, ${one.state}`);
const dear = { ...dpem, request_id: `${dpem.request_id}-b`, spend: { rho: 1000 } };
try { for await (const event of fits.FitDPEM(dear, metadata)) console.log(event); } catch (error) { console.log(`refused: ${grpc.status[error.code]}: ${error.details}`); }
