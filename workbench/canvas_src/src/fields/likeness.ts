// Which suggestions are like a typed text, the most alike first: equal, then beginning with it, then containing it, then misspelt.

const LETTERS_PER_ERROR = 3;

export function byLikeness<T extends { value: string }>(text: string, options: T[]): T[] {
  const typed = lettersOf(text);
  if (!typed) return options;
  const ranked = options.map((option) => ({ option, rank: likeness(typed, lettersOf(option.value)) }));
  return ranked.filter(({ rank }) => rank > 0).sort((a, b) => b.rank - a.rank).map(({ option }) => option);
}

/** Only letters and digits: “amount usd” is “amountUsd”. */
function lettersOf(text: string): string {
  return text.toLowerCase().replace(/[^\p{L}\p{N}]/gu, "");
}

/** 0 for texts that are not alike. */
function likeness(typed: string, value: string): number {
  if (value === typed) return 4;
  if (value.startsWith(typed)) return 3;
  if (value.includes(typed)) return 2;
  const errors = spellingErrors(typed, value);
  return errors <= (typed.length - 1) / LETTERS_PER_ERROR ? 1 - errors / typed.length : 0;
}

/** The fewest letters to add, leave out, change or exchange with the next one, until `typed` is a part of `value`. */
function spellingErrors(typed: string, value: string): number {
  let [earlier, last]: number[][] = [[], Array(value.length + 1).fill(0)];
  for (let row = 1; row <= typed.length; row++) {
    const errors = [row];
    for (let column = 1; column <= value.length; column++) {
      const same = typed[row - 1] === value[column - 1];
      errors[column] = Math.min(last![column]! + 1, errors[column - 1]! + 1, last![column - 1]! + (same ? 0 : 1));
      const exchanged = row > 1 && typed[row - 1] === value[column - 2] && typed[row - 2] === value[column - 1];
      if (exchanged) errors[column] = Math.min(errors[column]!, earlier![column - 2]! + 1);
    }
    [earlier, last] = [last, errors];
  }
  return Math.min(...last!);
}
