/** A cell for test/real/skips.test.ts, which runs this file where nothing can be installed, and where everything can. */
import { matrix } from './matrix.ts';

const cell = matrix('claude', import.meta.filename);

cell('a cell', async (_fixture, { installed }) => `found ${installed.version}`);
