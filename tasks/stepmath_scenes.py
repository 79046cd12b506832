# ruff: noqa: E501
"""The scenes of `stepmath`: what happens in them, and in which words.

One line says one thing that can happen, in several phrasings that a "|" separates; the first phrasing is also how the
worked solution names it. A line begins with what it does to the running quantity v:

    =  v is {a}          =+  v is {a} + {b}        =*  v is {k} * {x}             the opening
    +  v + {a}           -   v - {a}               *   v * {k}
    +* v + {k} * {x}     -*  v - {k} * {x}         /   v / {k}      /-  v - v / {k}
    ?  only asks for v                                                            the ending, with the question
    >+ >- >* >/          as above; the solution's words come first, then the phrasings; [unit, units] of the result
    >T {a} - v           >+2 >-2 >*2   another's quantity, then v + that; ";" separates the two lines' words
    ~  says something that does not matter, with a number {a}
    use                  the lines of a scene that is only a collection

Words: {N} and {M} are people, {s} {o} {p} the first one's she, her, her; {us} the units; of {k} {t} is "twice",
{d} "doubles", {D} "doubled", {f} "half". Openings and changes get their capital and full stop later.
"""

COLLECTIONS = """
scene has: thing, things
? How many {us} does {N} have now? | How many {us} does {N} have in the end? | What number of {us} does {N} have now?
>/ {s} shares them equally among {k} friends | Finally, {s} shares all the {us} equally among {k} friends. How many {us} does each friend get? | In the end, {s} divides the {us} equally among {k} friends. How many {us} does each of the friends get?
>T {s} still needs | {s} wants to have {a} {us}. How many more {us} does {s} need? | {p} goal is {a} {us}. How many {us} is {s} still missing?
>+ {M} has {a} more | {M} has {a} more {us} than {N} has now. How many {us} does {M} have? | Now {M} has {a} {us} more than {N}. How many {us} does {M} have?
>- {M} has {a} fewer | {M} has {a} fewer {us} than {N} has now. How many {us} does {M} have? | Now {M} has {a} {us} fewer than {N}. How many {us} does {M} have?
>* {M} has {t} as many | {M} has {t} as many {us} as {N} has now. How many {us} does {M} have? | Now {M} has {t} as many {us} as {N}. How many {us} does {M} have?
>+ together they have | {M} has {a} {us}. How many {us} do {N} and {M} have together now? | {p} friend {M} has {a} {us}. How many {us} do the two of them have in total now?
>- the difference is | {M} has {a} {us}. How many more {us} than {M} does {N} have now? | {p} friend {M} has {a} {us}. By how many {us} is {N} ahead of {M} now?
>+2 {M} has {a} more; together they have | {M} has {a} more {us} than {N} has now. How many {us} do they have together? | Now {M} has {a} {us} more than {N}. How many {us} do the two of them have in total?
>-2 {M} has {a} fewer; together they have | {M} has {a} fewer {us} than {N} has now. How many {us} do they have together? | Now {M} has {a} {us} fewer than {N}. How many {us} do the two of them have in total?
>*2 {M} has {t} as many; together they have | {M} has {t} as many {us} as {N} has now. How many {us} do they have together? | Now {M} has {t} as many {us} as {N}. How many {us} do the two of them have in total?

scene sells: thing, things
>* [dollar, dollars] {s} sells them for {k} dollars each | Finally, {s} sells all the {us} that {s} has now for {k} dollars each. How many dollars does {s} get for them? | In the end, all the {us} that {N} still has are sold at {k} dollars each. How much money, in dollars, does {N} get for them?

scene life: thing, things
~ {p} brother is {a} years old | {p} cousin is {a} years old
~ it is {a} degrees outside | the thermometer shows {a} degrees
~ {s} lives {a} minutes from the station | {s} lives at number {a} of {p} street
~ {p} favourite number is {a} | {p} aunt turns {a} this year
"""

TRAINED = """
scene apples: apple, apples
use has sells life
= {N} has {a} apples | {N} starts the day with {a} apples | There are {a} apples in the basket that {N} carries
=* {N} has {k} bags of {x} apples | {N} owns {k} bags with {x} apples in each
=+ {N} has {a} red and {b} green apples | {N} picks {a} red apples and {b} green ones
+ {s} buys {a} more apples | {s} gets another {a} apples at the market
+ a neighbour gives {o} {a} apples | {a} apples are a present from a neighbour
+ {s} picks {a} apples | from the tree behind the house {s} picks {a} apples
- {s} gives away {a} apples | {s} hands {a} of the apples to the children next door
- {s} uses {a} apples for a pie | {a} of the apples go into a pie
- {a} apples are rotten and thrown away | {s} throws away {a} rotten apples
+* {s} buys {k} bags of {x} apples | {s} also gets {k} bags with {x} apples in each
-* {s} gives {x} apples to each of {k} friends | {k} friends come by and take {x} apples each
/- {s} gives {f} of the apples to {p} sister | {f} of {p} apples go to {p} sister
* a good harvest {d} {p} apples | thanks to a good harvest, the number of {p} apples {d}
>/ [bag, bags] {s} packs them into bags of {k} | Finally, {s} packs all the apples into bags of {k}. How many bags does {s} fill? | In the end, {s} puts the apples into bags, {k} in each. How many bags are there?
~ an orange costs {a} cents | the market has {a} stalls

scene muffins: muffin, muffins
use sells life
= {N} bakes {a} muffins | In the morning {N} bakes {a} muffins | {N} opens the bakery with {a} muffins on the shelf
=* {N} bakes {k} trays of {x} muffins | {N} takes {k} trays with {x} muffins each out of the oven
=+ {N} bakes {a} lemon and {b} cherry muffins | {N} bakes {a} lemon muffins and {b} cherry muffins
+ {s} bakes {a} more muffins | {s} makes another {a} muffins
+ {p} helper brings {a} muffins | {p} helper adds {a} muffins
- {s} sells {a} muffins | customers buy {a} muffins from {o}
- {a} muffins burn and are thrown away | {s} burns {a} muffins and throws them away
- {s} takes {a} muffins to a party | {a} of the muffins go to a party
+* {s} bakes {k} trays of {x} muffins | {k} more trays with {x} muffins each come out of the oven
-* {s} sells {x} muffins to each of {k} customers | {k} customers buy {x} muffins each
/- {s} sells {f} of the muffins | a cafe takes {f} of the muffins
* {s} {d} the number of muffins | a long night of baking {d} the number of muffins
/ {s} keeps only {f} of the muffins | all but {f} of the muffins are sold
? How many muffins does {N} have now? | How many muffins does {N} have at the end of the day? | How many muffins are there now?
>/ [box, boxes] {s} packs them into boxes of {k} | {s} packs all the muffins into boxes of {k}. How many boxes does {s} need? | The muffins are packed into boxes, {k} in each. How many boxes are filled?
>/ {s} puts them on {k} plates | {s} puts the muffins on {k} plates, the same number on each. How many muffins are on each plate? | The muffins are spread evenly over {k} plates. How many muffins does each plate hold?
>T {s} still has to bake | A customer orders {a} muffins, including all of these. How many muffins does {N} still have to bake? | {N} needs {a} muffins in all. How many more must {s} bake?
~ the bakery opened {a} years ago | a loaf of bread weighs {a} ounces

scene garden: plant, plants
use life
= {N} has {a} plants in the garden | {N} grows {a} plants in a garden | In spring there are {a} plants in the garden of {N}
=* {N} plants {k} rows of {x} plants | {N} has a garden with {k} rows of {x} plants
=+ {N} has {a} tomato and {b} pepper plants | {N} grows {a} tomato plants and {b} pepper plants
+ {s} adds {a} plants | {s} sets {a} new plants into the soil
+ {p} uncle gives {o} {a} plants | {a} plants come from {p} uncle
- snails eat {a} plants | {s} loses {a} plants to the snails
- {s} gives {a} plants to a friend | {s} digs up {a} plants for a friend
- {a} plants dry out and die | {a} of the plants do not survive the heat
+* {s} adds {k} rows of {x} plants | {s} makes {k} new rows with {x} plants in each
-* {s} removes {k} rows of {x} plants | {s} clears {k} rows that hold {x} plants each
/- {f} of the plants freeze | a cold night kills {f} of the plants
* {s} {d} the number of plants | with cuttings {s} {d} the number of plants
? How many plants are in the garden now? | How many plants does {N} have in the end? | How many plants are there now?
>/ {s} puts them into {k} equal rows | Finally, {s} arranges all the plants in {k} equal rows. How many plants are in each row? | In the end the plants stand in {k} equal rows. How many plants does each row have?
>* [tomato, tomatoes] each plant gives {k} tomatoes | Each plant now gives {k} tomatoes. How many tomatoes does {N} pick? | {N} now picks {k} tomatoes from each of the plants. How many tomatoes is that?
>T there is still room for | There is room for {a} plants in all. How many more plants can {N} add? | The garden can hold {a} plants. For how many more plants is there room?
>+ together they have | {M} has {a} plants. How many plants do {N} and {M} have together? | In the garden next door {M} has {a} plants. How many plants do both gardens have together now?
~ the garden fence is {a} feet long | the house next door has {a} windows

scene library: book, books
= There are {a} books on the shelf | A library shelf holds {a} books | {a} books stand on a shelf of the library
=* There are {k} shelves with {x} books each | A small library has {k} shelves of {x} books
=+ There are {a} novels and {b} comic books on the shelf | A library shelf holds {a} novels and {b} comic books
+ the library buys {a} books | {a} new books arrive
+ readers return {a} books | {a} books come back from readers
+ a school donates {a} books | {N} donates {a} books
- readers borrow {a} books | {a} books are borrowed
- {a} damaged books are removed | the librarian takes out {a} damaged books
- a class borrows {a} books | {N} borrows {a} books for a class
+* {k} boxes with {x} books each arrive | the library receives {k} boxes of {x} books
-* {k} readers borrow {x} books each | {x} books are lent to each of {k} readers
/- {f} of the books are lent to a school | a school borrows {f} of the books
* a large gift {d} the number of books | thanks to a large gift, the number of books {d}
? How many books are there now? | How many books does the library shelf hold in the end? | How many books are there in the end?
>/ they go on {k} shelves | The books are placed evenly on {k} shelves. How many books are on each shelf? | The librarian spreads the books evenly over {k} shelves. How many books stand on each of them?
>/ [box, boxes] they go into boxes of {k} | All the books are packed into boxes of {k}. How many boxes are needed? | For a move, the books are put into boxes, {k} in each. How many boxes are filled?
>T there is still room for | There is room for {a} books. How many more books fit? | The library has space for {a} books. How many more can it take?
>+ together they have | Another library room has {a} books. How many books are there in total now? | The room upstairs holds {a} books. How many books are there altogether now?
~ the library opens {a} hours a week | the librarian is {a} years old
~ the oldest book is {a} years old | a library card costs {a} dollars

scene bus: passenger, passengers
= There are {a} passengers on a bus | A bus leaves the station with {a} passengers | {a} passengers sit on a bus
=+ There are {a} adults and {b} children on a bus | A bus leaves with {a} adults and {b} children as passengers
=* A bus has {k} rows with {x} passengers each | On a bus, {k} rows are taken by {x} passengers each
+ {a} passengers get on | at the next stop {a} passengers get on
+ a class of {a} pupils gets on | at the school, {a} pupils get on
+ {a} tourists get on | in front of the museum, {a} tourists get on
- {a} passengers get off | at the next stop {a} passengers get off
- {a} passengers leave at the hospital | at the hospital, {a} passengers leave the bus
- {a} people get off at the market | at the market, {a} people get off
+* {k} groups of {x} passengers get on | at the stadium, {k} groups of {x} people get on
-* {k} families of {x} get off | at the park, {k} families of {x} people get off
/- {f} of the passengers get off | at the main square, {f} of the passengers get off
* the number of passengers {d} | at the airport the number of passengers {d}
? How many passengers are on the bus now? | How many passengers does the bus carry now? | How many people are on the bus in the end, without the driver?
>* [dollar, dollars] each one pays {k} dollars | Each passenger now on the bus pays {k} dollars. How many dollars are paid? | Each of the passengers now on the bus has a ticket for {k} dollars. How many dollars did these tickets cost in total?
>T there are still free | The bus has {a} seats. How many seats are free? | There are {a} seats for passengers, and everyone sits on one. How many seats are empty now?
>+ together they carry | A second bus carries {a} passengers. How many passengers are on the two buses now? | Another bus has {a} passengers. How many passengers do both buses carry together now?
>/ they split into {k} groups | At the last stop all the passengers get off and form {k} equal groups. How many people are in each group? | At the end all the passengers get off and split into {k} equal groups. How many passengers are in each group?
~ the bus is {a} years old | the driver has worked for {a} years
~ the trip takes {a} minutes | the bus has the number {a}

scene savings: dollar, dollars
use life
= {N} has {a} dollars | {N} has saved {a} dollars | There are {a} dollars in the money box of {N}
=* {N} saves {x} dollars a week for {k} weeks | For {k} weeks {N} puts {x} dollars a week into a money box
=+ {N} has {a} dollars at home and {b} dollars in the bank | {N} keeps {a} dollars at home and {b} dollars in the bank
+ {s} earns {a} dollars | {s} gets {a} dollars for washing a car
+ {p} grandmother gives {o} {a} dollars | for {p} birthday {s} gets {a} dollars from {p} grandmother
+ {s} finds {a} dollars | {s} finds {a} dollars in an old coat
- {s} spends {a} dollars on a lamp | {s} buys a lamp for {a} dollars
- {s} pays {a} dollars for a ticket | {s} buys a ticket, which costs {a} dollars
- {s} gives {a} dollars to charity | {s} donates {a} dollars
+* {s} works {k} hours for {x} dollars an hour | {s} mows {k} lawns for {x} dollars each
-* {s} buys {k} toys for {x} dollars each | {s} pays for {k} toys that cost {x} dollars each
/- {s} spends {f} of {p} money | {s} pays {f} of {p} money for a jacket
* {p} father {d} {p} money | as a reward, {p} father {d} {p} money
? How many dollars does {N} have now? | How much money does {N} have in the end, in dollars? | How many dollars does {N} have in the end?
>T {s} still needs | {s} wants a bicycle that costs {a} dollars. How many more dollars does {s} need? | A game costs {a} dollars. How many dollars is {N} short?
>/ [book, books] one book costs {k} dollars | {s} spends all of it on books for {k} dollars each. How many books does {s} buy? | One book costs {k} dollars, and {s} spends everything on books. How many books does {N} get?
>/ {s} divides it among {k} children | {s} divides the money equally among {k} children. How many dollars does each child get? | The money is shared equally by {k} children. How many dollars does each of them receive?
>+ {M} has {a} more | {M} has {a} dollars more than {N} has now. How many dollars does {M} have? | Now {M} has {a} more dollars than {N}. How much money does {M} have, in dollars?
>* {M} has {t} as much | {M} has {t} as much money as {N} has now. How many dollars does {M} have? | Now {M} has {t} as much money as {N}. How many dollars does {M} have now?
>+2 {M} has {a} more; together they have | {M} has {a} dollars more than {N} has now. How many dollars do they have together? | Now {M} has {a} more dollars than {N}. How much money do the two of them have in total, in dollars?
>*2 {M} has {t} as much; together they have | {M} has {t} as much money as {N} has now. How many dollars do they have together? | Now {M} has {t} as much money as {N}. How many dollars do the two of them have in total?

scene trip: student, students
= {a} students sign up for a trip | A school trip starts with {a} students on the list | There are {a} students on the list for a school trip
=* {k} classes send {x} students each on a trip | From {k} classes, {x} students each sign up for a trip
=+ {a} girls and {b} boys sign up for a trip | There are {a} girls and {b} boys on the list for a school trip, and no other students
+ {a} more students sign up | another {a} students put their names on the list
+ {a} students from another school join | another school sends {a} students along
- {a} students fall ill and stay at home | {a} students stay at home because they are ill
- {a} students cancel | {a} of the students change their minds and cancel
- {a} students leave for a football match | because of a football match, {a} students drop out
+* {k} clubs with {x} students each join | {k} clubs of {x} students come along as well
-* {k} groups of {x} students drop out | {k} groups with {x} students each decide not to go
/- {f} of the students drop out | rain makes {f} of the students drop out
* the number of students {d} | after an advertisement the number of students {d}
? How many students go on the trip? | How many students are on the trip in the end? | How many students take part in the end?
>/ they form {k} groups | The students form {k} equal groups. How many students are in each group? | {N}, their teacher, divides the students into {k} equal groups. How many students does each group have?
>/ [van, vans] each van takes {k} | Each van takes {k} students, and all the vans are full. How many vans are needed? | The students travel in full vans of {k}. How many vans do they use?
>* [dollar, dollars] each one pays {k} dollars | Each student who goes pays {k} dollars. How many dollars do they pay together? | The price is {k} dollars for each student who goes. How much is that for all of them, in dollars?
>T there are still free | There are {a} places on the trip. How many places are still free? | The trip has room for {a} students. How many more can join?
~ the museum is {a} miles away | the teacher is {a} years old
~ the trip lasts {a} hours | the school was built {a} years ago

scene reading: page, pages
use life
= {N} has {a} pages left to read | {N} still has to read {a} pages | There are {a} pages in a book that {N} wants to read
=* {N} has {k} chapters of {x} pages to read | {N} wants to read {k} chapters with {x} pages each
=+ {N} has to read {a} pages of history and {b} pages of science | {N} must read {a} pages for history and {b} pages for science
+ {p} teacher adds {a} pages | {p} teacher tells {o} to read {a} more pages
+ {s} adds a story of {a} pages to {p} list | {s} decides to read a story of {a} pages as well
- {s} reads {a} pages | before breakfast {s} reads {a} pages
- {s} reads {a} pages on the train | on the train {s} reads another {a} pages
- {s} skips {a} pages | {s} leaves out {a} boring pages
- {s} reads {a} pages in bed | in the evening {s} reads {a} pages in bed
+* {s} adds {k} articles of {x} pages | {p} list grows by {k} articles with {x} pages each
-* {s} reads {x} pages a day for {k} days | for {k} days {s} reads {x} pages each day
/- {s} reads {f} of the pages | {s} gets through {f} of the remaining pages
? How many pages are left? | How many pages does {N} still have to read? | How many pages remain to be read?
>/ [day, days] {s} reads {k} a day | From now on {s} reads {k} pages a day. How many days does {s} need to finish? | If {N} reads {k} pages each day from now on, how many days will the rest take?
>/ {s} spreads them over {k} days | {s} spreads the rest evenly over {k} days. How many pages does {s} read each day? | {s} wants to finish in {k} days with the same number of pages each day. How many pages a day is that?
>* [minute, minutes] each page takes {k} minutes | Each of the remaining pages takes {k} minutes. How many minutes does the rest take? | {s} needs {k} minutes for each of the pages that are left. How many minutes will {N} need for them?
>+ together they have | {M} has {a} pages left to read. How many pages do {N} and {M} have left together? | {M} still has to read {a} pages. How many pages are left for the two of them together?
>- {M} has {a} fewer | {M} has {a} fewer pages left than {N} has now. How many pages does {M} have left? | Now {M} has {a} pages fewer to read than {N}. How many pages does {M} still have to read?
~ the bookshop is {a} minutes away | the cover shows {a} birds

scene eggs: egg, eggs
use sells life
= {N} has {a} eggs | {N} collects {a} eggs on the farm | On the farm, {N} finds {a} eggs in the morning
=* {N} has {k} hens that lay {x} eggs each | On the farm of {N}, {k} hens lay {x} eggs each
=+ {N} collects {a} brown and {b} white eggs | In the barn {N} finds {a} brown eggs and {b} white ones
+ the hens lay {a} more eggs | {s} collects another {a} eggs
+ a farmer gives {o} {a} eggs | {s} gets {a} eggs from another farmer
- {s} drops and breaks {a} eggs | {a} of the eggs fall down and break
- {s} cooks {a} eggs | {s} uses {a} eggs for breakfast
- {s} sells {a} eggs at the gate | at the gate {s} sells {a} eggs
+* {k} hens lay {x} eggs each | {s} finds {k} nests with {x} eggs each
-* {s} uses {x} eggs for each of {k} cakes | {s} bakes {k} cakes with {x} eggs each
/- {s} sells {f} of the eggs | a shop buys {f} of the eggs
/ {s} keeps only {f} of the eggs and sells the rest | {s} sells all but {f} of the eggs
? How many eggs does {N} have now? | What number of eggs does {N} have now? | How many eggs does {N} have in the end?
>/ [carton, cartons] {s} packs them into cartons of {k} | {s} packs all the eggs into cartons of {k}. How many cartons does {s} fill? | The eggs go into cartons, {k} in each. How many cartons does {N} need?
>/ {s} gives them to {k} families | {s} gives all the eggs to {k} families, the same number to each. How many eggs does each family get? | {k} families share the eggs equally. How many eggs are there for each family?
>T {s} still needs | {s} needs {a} eggs for a big order. How many eggs are missing? | For the market {N} wants {a} eggs. How many more eggs does {s} need?
~ the barn is {a} years old | the farm has {a} sheep

scene marbles: marble, marbles
use has life
= {N} has {a} marbles | {N} owns {a} marbles | There are {a} marbles in the bag of {N}
=* {N} has {k} bags of {x} marbles | {N} owns {k} bags with {x} marbles in each
=+ {N} has {a} blue and {b} yellow marbles | {N} owns {a} blue marbles and {b} yellow ones
+ {s} wins {a} marbles | in a game {s} wins {a} marbles
+ {s} finds {a} marbles under the sofa | under the sofa {s} finds {a} marbles
+ {p} cousin gives {o} {a} marbles | {s} gets {a} marbles from {p} cousin
- {s} loses {a} marbles | in a game {s} loses {a} marbles
- {s} trades {a} marbles for a toy car | {s} gives {a} marbles for a toy car
- {a} marbles roll away and are lost | {a} marbles fall into a drain and are lost
+* {s} wins {x} marbles in each of {k} games | {s} plays {k} games and wins {x} marbles in each
-* {s} loses {x} marbles in each of {k} games | {s} plays {k} games and loses {x} marbles in each
/- {s} gives {f} of the marbles to {p} brother | {p} brother gets {f} of {p} marbles
* a lucky game {d} {p} marbles | in a lucky game the number of {p} marbles {d}
>/ [jar, jars] {s} puts them into jars of {k} | Finally, {s} puts all the marbles into jars, {k} in each. How many jars does {s} fill? | In the end, {s} fills jars with {k} marbles each until no marble is left. How many jars is that?
~ the largest marble weighs {a} grams | the playground is {a} steps long

scene paint: can, cans
use life
= {N} has {a} cans of paint | {N} starts with {a} cans of paint | There are {a} cans of paint in the garage of {N}
=* {N} has {k} boxes of {x} cans of paint | {N} buys {k} boxes with {x} cans of paint each
=+ {N} has {a} cans of white paint and {b} cans of blue paint | {N} buys {a} cans of white paint and {b} cans of blue paint
+ {s} buys {a} more cans | {s} gets another {a} cans at the store
+ a friend brings {a} cans | {p} friend has {a} cans to spare and brings them
- {s} uses {a} cans for the kitchen | {s} paints the kitchen with {a} cans
- {s} uses {a} cans for the fence | the fence takes {a} cans
- {s} returns {a} cans | {s} takes {a} cans back to the store
- {s} throws away {a} dry cans | {a} cans have dried up and are thrown away
+* {s} buys {k} boxes of {x} cans | {s} orders {k} boxes with {x} cans each
-* {s} paints {k} rooms with {x} cans each | {s} uses {x} cans for each of {k} rooms
/- {s} uses {f} of the cans for the hall | painting the hall takes {f} of the cans
* a delivery {d} the number of cans | after a delivery the number of cans {d}
? How many cans does {N} have now? | How many cans of paint does {N} have now? | How many cans of paint are there in the end?
>/ [room, rooms] each room takes {k} cans | Each of the other rooms takes {k} cans, and {s} uses up all the paint. How many of them can {s} paint? | With {k} cans for each of the other rooms, how many of them can {N} paint?
>* [dollar, dollars] each can is worth {k} dollars | Each can is worth {k} dollars. How many dollars are the cans worth that {N} has now? | What are all the cans that {N} has now worth, in dollars, at {k} dollars each?
>T {s} still needs | The rest of the house takes {a} cans. How many more cans does {N} need? | For the outside walls {s} needs {a} cans. How many cans are missing?
~ the ladder has {a} steps | the house is {a} years old

scene cycling: mile, miles
use life
= {N} has {a} miles to cycle | {N} plans a bicycle tour of {a} miles | On a bicycle tour {N} has {a} miles ahead
=* {N} plans to cycle {x} miles on each of {k} days | {N} plans a bicycle tour of {k} parts with {x} miles each
=+ {N} plans to cycle {a} miles to a lake and {b} miles to a castle | {N} plans a bicycle tour of {a} miles along a river and {b} miles through a forest
+ {s} adds a loop of {a} miles to the plan | {s} decides to add a loop of {a} miles
+ a closed road makes the way {a} miles longer | because of a closed road the way gets {a} miles longer
- {s} rides {a} miles | before lunch {s} rides {a} miles
- {s} rides {a} miles along the river | along the river {s} rides {a} miles
- a short cut saves {o} {a} miles | {s} saves {a} miles by a short cut
- {s} rides {a} miles downhill | downhill {s} rides {a} miles
+* {s} adds {k} trips of {x} miles to the plan | {p} plan grows by {k} trips of {x} miles each
-* {s} rides {x} miles an hour for {k} hours | for {k} hours {s} rides {x} miles each hour
/- {s} rides {f} of the remaining way | {s} manages {f} of the miles that remain
? How many miles are left? | How many miles does {N} still have to ride? | How many miles are still ahead of {N}?
>/ [hour, hours] {s} rides {k} miles an hour | From now on {s} rides {k} miles an hour. How many hours does the rest take? | If {N} rides {k} miles each hour from now on, how many hours will the rest take?
>/ {s} splits the rest into {k} parts | {s} splits the rest evenly over {k} days. How many miles does {s} ride each day? | The rest is split into {k} equal parts. How many miles long is each part?
>+ together they have | {M} has {a} miles left. How many miles do {N} and {M} have left together? | {M} still has to ride {a} miles. How many miles is that for both of them together?
>* {M} has to ride {t} as far | {M} has to ride {t} as far as {N} does now. How many miles does {M} have to ride? | Now {M} has {t} as many miles ahead as {N}. How many miles does {M} have ahead?
~ the road has {a} bends | {s} drinks {a} ounces of water

scene stickers: sticker, stickers
use has life
= {N} has {a} stickers | {N} starts an album with {a} stickers | The album of {N} holds {a} stickers
=* {N} has {k} sheets of {x} stickers | {N} gets {k} sheets with {x} stickers each
=+ {N} has {a} animal stickers and {b} star stickers | {N} collects {a} animal stickers and {b} star stickers
+ {s} buys {a} stickers | at the shop {s} buys {a} stickers
+ {s} gets {a} stickers for good work | {p} teacher gives {o} {a} stickers
+ {s} swaps a card for {a} stickers | for an old card {s} gets {a} stickers
- {s} uses {a} stickers on a letter | {s} puts {a} stickers on a letter
- {s} gives {a} stickers to a friend | a friend gets {a} stickers from {o}
- {s} loses {a} stickers | on the way home {s} loses {a} stickers
+* {s} buys {k} packs of {x} stickers | {s} opens {k} packs with {x} stickers each
-* {s} puts {x} stickers on each of {k} notebooks | {k} notebooks get {x} stickers each
/- {s} gives {f} of the stickers away | {f} of {p} stickers go to a friend
* a present {d} {p} stickers | a present from {p} uncle {d} the number of {p} stickers
>/ [page, pages] {s} puts {k} on a page | Finally, {s} fills pages with {k} stickers each and uses all the stickers. How many pages does {s} fill? | In the end, {s} places all the stickers on pages, {k} on each. How many pages is that?
~ the album costs {a} cents | the album has a cover with {a} dots

scene blocks: block, blocks
use life
= {N} builds a tower of {a} blocks | {N} has a tower of {a} blocks | There are {a} blocks in the tower that {N} builds
=* {N} builds a tower of {k} layers with {x} blocks each | In the tower of {N} there are {k} layers of {x} blocks
=+ {N} builds a tower of {a} red and {b} blue blocks | {N} uses {a} red blocks and {b} blue blocks for a tower
+ {s} adds {a} blocks | {s} puts another {a} blocks on top
+ {p} sister adds {a} blocks | {a} more blocks come from {p} sister
+ {s} builds a gate with {a} blocks onto it | {s} adds a gate of {a} blocks
- {a} blocks fall off | {s} bumps into it and {a} blocks fall off
- {s} takes {a} blocks away | {s} pulls {a} blocks out
- {p} brother takes {a} blocks | {a} of the blocks are taken by {p} brother
+* {s} adds {k} layers of {x} blocks | {s} builds {k} new layers with {x} blocks each
-* {s} removes {k} layers of {x} blocks | the cat knocks down {k} layers with {x} blocks each
/- {f} of the blocks fall down | the dog knocks down {f} of the blocks
* {s} {d} the number of blocks | with a second box {s} {d} the number of blocks
? How many blocks are in the tower now? | How many blocks does the tower have in the end? | How many blocks are there in the tower of {N} now?
>/ {s} builds {k} small towers of them | Finally, {s} takes the tower apart and builds {k} equal small towers from all its blocks. How many blocks are in each of them? | In the end, {s} makes {k} equal small towers out of it. How many blocks does each small tower have?
>T {s} still needs | {s} wants a tower of {a} blocks. How many more blocks does {s} need? | The tower is finished at {a} blocks. How many blocks are missing?
>+ {M} uses {a} more | {M} builds a tower with {a} more blocks than {N} has in the tower now. How many blocks does {M} use? | Now the tower of {M} has {a} blocks more than the tower of {N}. How many blocks does the tower of {M} have?
>*2 {M} uses {t} as many; together they use | {M} builds a tower with {t} as many blocks as the tower of {N} has now. How many blocks are in both towers together? | Now the tower of {M} has {t} as many blocks as the tower of {N}. How many blocks do the two towers have in total?
~ a block weighs {a} grams | the room is {a} feet wide

scene fish: fish, fish
use life
= {N} has {a} fish in a tank | {N} keeps {a} fish in a tank | There are {a} fish in the tank of {N}
=* {N} has {k} tanks with {x} fish each | {N} keeps fish in {k} tanks, {x} in each
=+ {N} has {a} goldfish and {b} guppies, and no other fish | {N} keeps {a} goldfish and {b} guppies as the only fish
+ {s} buys {a} fish | at the pet shop {s} buys {a} fish
+ {a} young fish hatch | {a} little fish are born
+ a neighbour gives {o} {a} fish | {s} takes in {a} fish from a neighbour
- {s} sells {a} fish | {a} of {p} fish are sold
- {s} gives {a} fish to the school | {s} takes {a} fish to the school
- {s} moves {a} fish to a friend's pond | {a} fish go to a friend's pond
+* {s} buys {k} bags of {x} fish | {s} brings home {k} bags with {x} fish each
-* {s} gives {x} fish to each of {k} friends | {k} friends get {x} fish each from {o}
/- {s} sells {f} of the fish | a zoo takes {f} of the fish
* the number of {p} fish {d} | within a year the number of {p} fish {d}
? How many fish does {N} have now? | How many fish does {N} keep in the end? | How many fish are left with {N} in the end?
>/ {s} spreads them over {k} tanks | Finally, {s} spreads all the fish evenly over {k} tanks. How many fish are in each tank? | In the end, all {p} fish are in {k} tanks, the same number in each. How many fish does each tank hold?
>* [gram, grams] each fish eats {k} grams | Each fish now gets {k} grams of food. How many grams of food does {N} need? | Now {s} gives {k} grams of food to each fish. How many grams is that for all of {p} fish?
>- {M} has {a} fewer | {M} has {a} fewer fish than {N} has now. How many fish does {M} have? | Now {M} has {a} fish fewer than {N}. How many fish does {M} have?
>-2 {M} has {a} fewer; together they have | {M} has {a} fewer fish than {N} has now. How many fish do they have together? | Now {M} has {a} fish fewer than {N}. How many fish do the two of them have in total?
~ the water is {a} degrees warm | a bag of sand weighs {a} pounds

scene pencils: pencil, pencils
= There are {a} pencils in the classroom | A class has {a} pencils | The teacher, {N}, has {a} pencils for the class
=* There are {k} cups of {x} pencils in the classroom | A class has {k} cups with {x} pencils each
=+ There are {a} sharp and {b} blunt pencils in the classroom | A class has {a} sharp pencils and {b} blunt ones
+ the school buys {a} pencils | the class receives {a} new pencils
+ parents bring {a} pencils | {a} pencils are a gift from parents
+ {a} lost pencils are found | the cleaner finds {a} of the lost pencils
- {a} pencils break and are thrown away | {a} of the pencils are broken and thrown away
- the class loses {a} pencils | {a} pencils get lost
- another class takes {a} pencils | {a} of the pencils go to another class
+* the school buys {k} packs of {x} pencils | {k} packs with {x} pencils each arrive
-* {k} pupils take {x} pencils each | {x} pencils are given to each of {k} pupils
/- {f} of the pencils go to the art room | the art room gets {f} of the pencils
* a gift {d} the number of pencils | thanks to a gift, the number of pencils {d}
? How many pencils are in the classroom now? | How many pencils does the class have in the end? | How many pencils are there now?
>/ {k} tables share them | The pencils are shared equally by {k} tables. How many pencils does each table get? | {k} tables get the same number of pencils. How many pencils are there on each table?
>/ [pupil, pupils] each pupil gets {k} | Each pupil gets {k} pencils, and none are left over. How many pupils are there? | All the pencils are given out, {k} to each pupil. How many pupils get pencils?
>T the class still needs | The class needs {a} pencils. How many pencils are missing? | For a test, {a} pencils are needed. How many more does the class need?
>+ together they have | The class next door has {a} pencils. How many pencils do both classes have together now? | Another class has {a} pencils. How many pencils are there in the two classes now?
~ the classroom has {a} chairs | the lesson lasts {a} minutes
~ there are {a} maps on the wall | the school has {a} rooms

scene parking: car, cars
= There are {a} cars in a parking lot | {a} cars stand in a parking lot | In the morning a parking lot holds {a} cars
=* There are {k} rows of {x} cars in a parking lot | A parking lot has {k} rows with {x} cars each
=+ There are {a} black and {b} white cars in a parking lot, and no others | A parking lot holds {a} black cars and {b} white ones, and nothing else
+ {a} cars arrive | before noon {a} cars arrive
+ {a} cars come for a concert | for a concert {a} cars drive in
+ {a} taxis park there too | {a} taxis find a place there too
- {a} cars leave | after lunch {a} cars leave
- {a} cars drive home | in the rain {a} cars drive home
- {a} cars are towed away | the police have {a} cars towed away
+* {k} groups of {x} cars arrive | {k} groups with {x} cars each drive in
-* {k} rows of {x} cars leave | {k} rows with {x} cars each become empty
/- {f} of the cars leave | at the end of the match, {f} of the cars leave
* the number of cars {d} | within an hour the number of cars {d}
? How many cars are in the parking lot now? | How many cars does the parking lot hold in the end? | How many cars are parked there now?
>T there are still free | The lot has {a} places. How many places are free? | There are {a} places in all. How many of them are empty now?
>* [dollar, dollars] each one pays {k} dollars | Each car now in the lot pays {k} dollars. How many dollars is that? | Each of the cars now in the lot pays a fee of {k} dollars. How many dollars do they pay together?
>* [flyer, flyers] {N} puts {k} on each car | {N} puts {k} flyers on each car that is there now. How many flyers does {N} use? | Now {N} leaves {k} flyers on each of the cars. How many flyers is that?
>+ together they hold | A second lot holds {a} cars. How many cars are in both lots now? | In the next street there are {a} parked cars. How many cars is that together with the lot?
>/ they stand in {k} rows | The cars now stand in {k} equal rows. How many cars are in each row? | All the cars are parked in {k} equal rows. How many cars does each row have?
~ the gate is {a} feet wide | the lot is {a} years old
~ the guard is {a} years old | an hour costs {a} cents

scene points: point, points
use life
= {N} has {a} points in a game | {N} starts a game with {a} points | After one round {N} has {a} points
=* {N} hits {k} targets for {x} points each | In a game, {N} hits {k} targets that are worth {x} points each
=+ {N} scores {a} points in round one and {b} points in round two | In a game, {N} gets {a} points in the first round and {b} points in the second
+ {s} scores {a} points | in the next round {s} scores {a} points
+ {s} gets a bonus of {a} points | a bonus brings {o} {a} points
+ {s} finds a treasure worth {a} points | a treasure brings {o} {a} points
- {s} loses {a} points | because of a mistake {s} loses {a} points
- {s} pays {a} points for a hint | a hint costs {o} {a} points
- {s} falls into a trap and loses {a} points | a trap costs {o} {a} points
+* {s} collects {k} stars for {x} points each | {k} stars bring {o} {x} points each
-* {s} makes {k} mistakes and loses {x} points each time | {k} mistakes cost {o} {x} points each
/- {s} loses {f} of {p} points | a bad card costs {o} {f} of {p} points
* a magic card {d} {p} points | with a magic card {s} {d} {p} points
? How many points does {N} have now? | What is the score of {N} now? | How many points does {N} have in the end?
>T {s} still needs | {s} needs {a} points to win. How many points are missing? | The record is {a} points. How many more points does {N} need to reach it?
>+ {M} has {a} more | {M} has {a} more points than {N} has now. How many points does {M} have? | Now {M} is {a} points ahead of {N}. How many points does {M} have?
>- {M} has {a} fewer | {M} has {a} fewer points than {N} has now. How many points does {M} have? | Now {M} is {a} points behind {N}. How many points does {M} have?
>* {M} has {t} as many | {M} has {t} as many points as {N} has now. How many points does {M} have? | Now {M} has {t} as many points as {N}. What is the score of {M}?
>+2 {M} has {a} more; together they have | {M} has {a} more points than {N} has now. How many points do they have together? | Now {M} is {a} points ahead of {N}. How many points do the two of them have in total?
>*2 {M} has {t} as many; together they have | {M} has {t} as many points as {N} has now. How many points do they have together? | Now {M} has {t} as many points as {N}. How many points do the two of them have in total?
>/ [coin, coins] a coin costs {k} points | {s} exchanges all {p} points for coins at {k} points a coin. How many coins does {s} get? | One coin costs {k} points, and {s} spends all {p} points. How many coins does {N} get?
~ a round lasts {a} minutes | the game comes with {a} cards

scene roses: rose, roses
use sells life
= {N} has {a} roses in the shop | {N} opens the flower shop with {a} roses | There are {a} roses in the flower shop of {N}
=* {N} has {k} vases of {x} roses | In the flower shop of {N} there are {k} vases with {x} roses each
=+ {N} has {a} red and {b} white roses in the shop | The shop of {N} has {a} red roses and {b} white ones
+ {s} cuts {a} roses | {s} brings {a} roses from the garden
+ a van delivers {a} roses | {a} roses are delivered
- {s} sells {a} roses | a customer buys {a} roses
- {a} roses wilt and are thrown away | {s} throws away {a} wilted roses
- {s} gives {a} roses to {p} mother | {p} mother gets {a} roses
- a hotel takes {a} roses | {s} sends {a} roses to a hotel
+* {s} buys {k} bundles of {x} roses | {k} bundles with {x} roses each are delivered
-* {s} sells {x} roses to each of {k} customers | {k} customers buy {x} roses each
/- a wedding takes {f} of the roses | {s} sends {f} of the roses to a wedding
/ {s} keeps only {f} of the roses and sells the rest | {s} sells all but {f} of the roses
? How many roses does {N} have now? | How many roses are in the shop now? | How many roses are in the shop in the end?
>/ [bouquet, bouquets] {s} ties bouquets of {k} | {s} ties all the roses into bouquets of {k}. How many bouquets does {s} make? | All the roses are tied into bouquets, {k} in each. How many bouquets are there?
>/ {s} puts them into {k} vases | {s} puts the roses into {k} vases, the same number in each. How many roses are in each vase? | The roses are spread evenly over {k} vases. How many roses does each vase hold?
>T {s} still needs | A customer wants {a} roses. How many more does {N} need? | For a party {s} needs {a} roses. How many roses are missing?
~ the shop window is {a} feet wide | the shop is open {a} hours a week

scene lemonade: cup, cups
use life
= {N} makes {a} cups of lemonade | {N} fills {a} cups with lemonade | At the stand of {N} there are {a} cups of lemonade
=* {N} makes {k} jugs of lemonade with {x} cups each | {N} pours lemonade from {k} jugs, {x} cups from each
=+ {N} makes {a} cups of lemonade in the morning and {b} cups at noon | {N} prepares {a} cups of lemonade before lunch and {b} cups after it
+ {s} makes {a} more cups | {s} fills another {a} cups
+ {p} father makes {a} cups | {p} father helps and fills {a} cups
- {s} sells {a} cups | neighbours buy {a} cups
- {s} spills {a} cups | {a} cups are spilled
- {s} drinks {a} cups with {p} friends | together with {p} friends, {s} drinks {a} cups
- a team buys {a} cups | after the match a team buys {a} cups
+* {s} makes {k} jugs of {x} cups | {s} makes {k} jugs, which fill {x} cups each
-* {s} sells {x} cups to each of {k} families | {k} families buy {x} cups each
/- {s} sells {f} of the cups | in an hour {s} sells {f} of the cups
* {s} {d} the number of cups | because it is hot, {s} {d} the number of cups
? How many cups are there now? | How many full cups does {N} have now? | How many cups of lemonade are there in the end?
>* [dollar, dollars] {s} sells them for {k} dollars each | {s} sells all these cups for {k} dollars each. How many dollars does {s} get for them? | All the cups that {s} now has are sold for {k} dollars each. How many dollars does {N} get for them?
>/ {s} puts them on {k} tables | {s} puts the cups on {k} tables, the same number on each. How many cups are on each table? | The cups are spread evenly over {k} tables. How many cups does each table get?
>/ [tray, trays] a tray holds {k} | {s} puts all the cups on trays of {k}. How many trays does {s} need? | One tray holds {k} cups. How many trays does {N} need for all the cups?
>T {s} still needs | {s} needs {a} cups for a party. How many more cups does {s} have to make? | For the school fair {N} wants {a} cups. How many cups are missing?
~ the newspaper that day has {a} pages | the stand is {a} feet long

scene beads: bead, beads
use has life
= {N} has {a} beads | {N} buys {a} beads for bracelets | The box of {N} holds {a} beads
=* {N} has {k} tubes of {x} beads | {N} buys {k} tubes with {x} beads each
=+ {N} has {a} glass beads and {b} wooden beads | {N} buys {a} glass beads and {b} wooden ones
+ {s} buys {a} beads | at the craft shop {s} gets {a} beads
+ {s} takes {a} beads from an old necklace | an old necklace gives {o} {a} beads
- {s} uses {a} beads for a ring | {s} makes a ring with {a} beads
- {s} drops {a} beads and cannot find them | {s} loses {a} beads
- {s} gives {a} beads to {p} sister | {p} sister asks for {a} beads and gets them
- {a} beads are cracked and thrown away | {s} throws away {a} cracked beads
+* {s} buys {k} tubes of {x} beads | {s} adds {k} tubes with {x} beads each
-* {s} makes {k} bracelets of {x} beads | {s} uses {x} beads for each of {k} bracelets
/- {s} uses {f} of the beads for a belt | a belt takes {f} of the beads
* a gift {d} {p} beads | a gift from {p} aunt {d} the number of {p} beads
>/ [bracelet, bracelets] each bracelet takes {k} | Finally, {s} makes bracelets with {k} beads each and uses all the beads. How many bracelets does {s} make? | In the end, all the beads go into bracelets of {k} beads. How many bracelets is that?
~ the thread is {a} inches long | the craft shop is {a} minutes away

scene tank: litre, litres
= There are {a} litres of water in a tank | A tank holds {a} litres of water | {N} fills a tank with {a} litres of water
=* {k} buckets of {x} litres are poured into an empty tank | {N} pours {k} buckets of {x} litres into an empty tank
=+ a tank holds {a} litres of rain water and {b} litres of tap water | {N} pours {a} litres of rain water and {b} litres of tap water into an empty tank
+ rain adds {a} litres | after a shower there are {a} litres more
+ {N} pours in {a} litres | {N} adds {a} litres from a hose
+ a pump adds {a} litres | a pump brings {a} litres into the tank
- the garden takes {a} litres | {N} takes {a} litres for the garden
- {a} litres leak out | through a crack the tank loses {a} litres
- the horses drink {a} litres | {a} litres are given to the horses
+* {k} buckets of {x} litres are poured in | {N} pours in {k} buckets with {x} litres each
-* {N} takes out {k} buckets of {x} litres | {N} draws {k} buckets with {x} litres each from the tank
/- {f} of the water is used for cleaning | cleaning takes {f} of the water
* heavy rain {d} the amount of water | in heavy rain the amount of water {d}
? How many litres are in the tank now? | How many litres of water does the tank hold in the end? | How many litres of water are in the tank in the end?
>/ {k} barrels take it all | All the water is spread evenly over {k} barrels. How many litres are in each barrel? | {N} empties the tank into {k} barrels, the same amount in each. How many litres does each barrel get?
>/ [can, cans] a can takes {k} litres | {N} fills cans of {k} litres with all the water. How many cans does {N} fill? | One can takes {k} litres. How many cans can {N} fill with all the water?
>T there is still room for | The tank can hold {a} litres. How many litres are missing until it is full? | The tank is full at {a} litres. How many more litres fit in?
>+ together they hold | A second tank holds {a} litres. How many litres are in both tanks together now? | Next to it stands a tank with {a} litres. How many litres of water are there in total now?
~ the tank is {a} years old | the hose is {a} feet long
~ the farm has {a} cows | it is {a} degrees outside

scene photos: photo, photos
use life
= {N} had {a} photos on a phone | {N} took {a} photos | There were {a} photos on the phone of {N}
=* {N} took {x} photos on each of {k} days | For {k} days {N} took {x} photos a day
=+ {N} took {a} photos of animals and {b} photos of flowers | {N} had {a} photos of animals and {b} photos of flowers
+ {s} took {a} photos | on a walk {s} took {a} photos
+ a friend sent {o} {a} photos | {s} received {a} photos from a friend
+ {s} took {a} photos at a wedding | at a wedding {s} took {a} photos
- {s} deleted {a} photos | {s} deleted {a} dark photos
- {s} deleted {a} blurred photos | because they were blurred, {s} deleted {a} photos
- {s} lost {a} photos | because of an error {s} lost {a} photos
+* {s} took {x} photos in each of {k} cities | {s} visited {k} cities and took {x} photos in each
-* {s} deleted {k} folders of {x} photos | {s} removed {k} folders with {x} photos each
/- {s} deleted {f} of the photos | to save space {s} deleted {f} of the photos
* a trip {D} the number of {p} photos | on a trip the number of {p} photos {D}
/ {s} kept only {f} of the photos | {s} deleted all but {f} of the photos
? How many photos were there then? | How many photos did {N} have then? | How many photos did {N} have in the end?
>/ [page, pages] {s} put {k} on a page | Then {s} printed all the photos, {k} on a page. How many pages was that? | {s} filled an album with {k} photos on each page and used all the photos. How many pages did {s} fill?
>/ {s} sorted them into {k} albums | Then {s} sorted the photos into {k} albums of the same size. How many photos were in each album? | The photos were spread evenly over {k} albums. How many photos did each album hold?
>+ {M} had {a} more | At that point {M} had {a} more photos than {N}. How many photos did {M} have? | In the end {M} had {a} photos more than {N}. How many photos did {M} have?
>* {M} had {t} as many | At that point {M} had {t} as many photos as {N}. How many photos did {M} have? | In the end {M} had {t} as many photos as {N}. How many photos did {M} have?
>-2 {M} had {a} fewer; together they had | At that point {M} had {a} fewer photos than {N}. How many photos did they have together? | In the end {M} had {a} photos fewer than {N}. How many photos did the two of them have in total?
>+ together they had | {p} friend {M} had {a} photos. How many photos did they have together? | In the end {M} had {a} photos. How many photos did {N} and {M} have in total?

scene cinema: guest, guests
= There were {a} guests in a cinema | A cinema opened with {a} guests | {a} guests sat in a cinema
=* There were {k} rows of {x} guests in a cinema | In a cinema, {k} rows were taken by {x} guests each
=+ There were {a} adults and {b} children in a cinema | A cinema opened with {a} adults and {b} children as guests
+ {a} guests arrived | shortly before the film {a} guests arrived
+ {a} late guests came in | during the advertisements {a} guests came in late
+ a club of {a} people joined | a club came in with {a} people
- {a} guests left | because of the noise {a} guests left
- {a} guests fell asleep and were sent home | {a} guests were sent home because they were asleep
- {a} guests went home early | after the first half {a} guests went home
+* {k} groups of {x} guests came | {k} groups with {x} people each bought tickets and came in
-* {k} families of {x} left | {k} families with {x} people each walked out
/- {f} of the guests left | during the break {f} of the guests left
* the number of guests {D} | before the main film the number of guests {D}
? How many guests were in the cinema then? | How many guests were there in the end? | How many guests did the cinema have in the end?
>* [dollar, dollars] each one paid {k} dollars | Each guest then in the cinema paid {k} dollars for a snack. How many dollars was that? | Each of the guests then in the cinema bought a drink for {k} dollars. How many dollars did they pay together?
>T there were still free | The cinema had {a} seats, one for each guest. How many seats were free in the end? | There were {a} seats, and everyone sat on one. How many seats were empty then?
>/ they sat in {k} rows | The guests sat in {k} full rows of the same length. How many guests were in each row? | {N} seated all the guests in {k} equal rows. How many guests did each row have?
>+ together they had | The cinema next door had {a} guests. How many guests did the two cinemas have together in the end? | Another hall had {a} guests at that point. How many guests were there in both halls?
~ the film lasted {a} minutes | the screen was {a} feet wide
~ the cinema was {a} years old | a poster cost {a} dollars

scene plates: plate, plates
= There are {a} clean plates in a kitchen | A restaurant has {a} clean plates | {N} counts {a} clean plates in the kitchen
=* There are {k} stacks of {x} clean plates in a kitchen | A restaurant has {k} stacks with {x} clean plates each
=+ There are {a} small and {b} large clean plates in a kitchen | A restaurant has {a} small and {b} large plates, all clean
+ the cook washes {a} plates | {a} dirty plates are washed
+ the owner buys {a} plates | {a} new plates are bought
+ another restaurant lends {a} plates | {a} plates are borrowed from another restaurant
- the waiter breaks {a} plates | {a} clean plates are broken
- {a} plates are used for dinner | for dinner {a} plates are used
- {a} plates are used for cake | {a} guests have cake, on one plate each
+* {k} boxes of {x} plates arrive | {k} boxes with {x} clean plates each arrive
-* {k} tables take {x} plates each | {x} plates are put on each of {k} tables
/- {f} of the plates are taken to a party | a party needs {f} of the plates
* a delivery {d} the number of clean plates | after a delivery the number of clean plates {d}
? How many clean plates are there now? | How many clean plates does the kitchen have now? | How many clean plates are there in the end?
>/ they make {k} stacks | The plates are put into {k} equal stacks. How many plates are in each stack? | {N} makes {k} equal stacks of all these plates. How many plates does each stack have?
>/ [table, tables] a table takes {k} | Each table takes {k} plates. How many tables can be set with all these plates? | {N} sets tables with {k} plates each and uses all the clean plates. How many tables does {N} set?
>T there are still missing | For a wedding, {a} clean plates are needed. How many are missing? | The restaurant needs {a} clean plates tonight. How many more are needed?
>+ together they have | The kitchen upstairs has {a} clean plates. How many clean plates are there in both kitchens now? | In another cupboard there are {a} clean plates. How many clean plates is that in total now?
~ the oven is {a} years old | the soup cooks for {a} minutes
~ the restaurant has {a} lamps | the cook started {a} years ago

scene warehouse: box, boxes
= There are {a} boxes in a warehouse | A warehouse holds {a} boxes | {N} looks after {a} boxes in a warehouse
=* There are {k} piles of {x} boxes in a warehouse | A warehouse holds {k} piles with {x} boxes each
=+ There are {a} small and {b} big boxes in a warehouse | A warehouse holds {a} small boxes and {b} big ones
+ a truck brings {a} boxes | {a} boxes arrive by truck
+ a ship brings {a} boxes | {a} boxes arrive by ship
+ customers send back {a} boxes | {a} boxes are sent back by customers
- {a} boxes are sold | customers buy {a} boxes
- a truck takes {a} boxes away | {a} boxes leave on a truck
- {a} wet boxes are thrown away | because they are wet, {a} boxes are thrown away
+* {k} trucks bring {x} boxes each | {x} boxes arrive on each of {k} trucks
-* {k} trucks take {x} boxes each | {k} trucks leave with {x} boxes each
/- {f} of the boxes are moved to another place | another place gets {f} of the boxes
* the number of boxes {d} | before the holidays the number of boxes {d}
? How many boxes are in the warehouse now? | How many boxes does the warehouse hold in the end? | How many boxes are there in the end?
>/ they fit on {k} trucks | All the boxes are loaded evenly onto {k} trucks. How many boxes are on each truck? | {k} trucks take all the boxes, the same number each. How many boxes does each truck take?
>/ [pile, piles] a pile has {k} | Workers make piles of {k} from all the boxes. How many piles are there? | All the boxes are put into piles, {k} in each. How many piles does that make?
>* [pound, pounds] each box weighs {k} pounds | Each box weighs {k} pounds. How many pounds do the boxes now in the warehouse weigh? | What do the boxes now in the warehouse weigh in all, in pounds, if each one weighs {k} pounds?
>T there is still room for | There is room for {a} boxes. How many more boxes fit? | The warehouse can hold {a} boxes. How many more boxes can come?
~ the warehouse has {a} windows | the gate is {a} feet high
~ a worker drives {a} miles to work | the forklift is {a} years old

scene stamps: stamp, stamps
use has sells life
= {N} has {a} stamps | {N} owns {a} stamps | A collection that {N} owns has {a} stamps
=* {N} has {k} pages of {x} stamps | {N} owns an album of {k} pages with {x} stamps each
=+ {N} has {a} old stamps and {b} new stamps | {N} owns {a} old stamps and {b} new ones
+ {s} buys {a} stamps | at a fair {s} buys {a} stamps
+ {p} grandfather gives {o} {a} stamps | from {p} grandfather {s} gets {a} stamps
+ {s} cuts {a} stamps from old letters | old letters give {o} {a} stamps
- {s} sells {a} stamps to a dealer | a dealer buys {a} stamps from {o}
- {s} gives {a} stamps to {p} cousin | {p} cousin gets {a} of the stamps
- {s} sorts out {a} torn stamps | {a} stamps are torn and thrown away
+* {s} buys {k} sets of {x} stamps | {s} orders {k} sets with {x} stamps each
-* {s} trades {k} sets of {x} stamps for a coin | for a coin {s} gives away {k} sets with {x} stamps each
/- {s} gives {f} of the stamps to a museum | a museum gets {f} of {p} stamps
* a lucky find {d} {p} collection | thanks to a lucky find, the number of {p} stamps {d}
>/ [page, pages] {s} puts {k} on a page | Finally, {s} puts all the stamps on pages, {k} on each. How many pages does {s} fill? | In the end, {s} places {k} stamps on each page until none are left. How many pages is that?
~ the oldest stamp is {a} years old | the album weighs {a} ounces

scene train: passenger, passengers
= A train carried {a} passengers | A train left with {a} passengers | There were {a} passengers on a train
=* A train had {k} cars with {x} passengers each | A train left with {k} cars of {x} passengers
=+ A train carried {a} passengers in first class and {b} in second class, and no one else | There were {a} passengers in the front of a train and {b} in the back
+ {a} passengers got on | at the first station {a} passengers got on
+ {a} hikers got on | in the mountains {a} hikers got on
+ {a} soldiers got on | near the border {a} soldiers got on
- {a} passengers got off | at the next station {a} passengers got off
- {a} passengers left at the airport | at the airport {a} passengers left the train
- {a} skiers got off | in a village {a} skiers among the passengers got off
+* {k} teams of {x} players got on | at the sports park {k} teams of {x} players got on
-* {k} groups of {x} got off | in the city {k} groups of {x} passengers got off
/- {f} of the passengers got off | at the central station {f} of the passengers got off
* the number of passengers {D} | in the capital the number of passengers {D}
? How many passengers were on the train then? | How many passengers did the train carry in the end? | How many passengers were on the train in the end?
>T there were still free | The train had {a} seats, one for each passenger. How many seats were free in the end? | There were {a} seats, and everyone sat on one. How many seats were empty then?
>/ {k} buses took them | Then the train broke down and {k} buses took all the passengers, the same number each. How many passengers were in each bus? | At the end of the line the passengers changed to {k} buses, the same number to each. How many passengers did each bus take?
>* [dollar, dollars] each one paid {k} dollars | Each of the passengers then on the train bought a snack for {k} dollars. How many dollars did they pay together? | Each passenger on the train then paid {k} dollars for a drink. How many dollars was that?
>+ together they carried | At that point another train carried {a} passengers. How many passengers did both trains carry together? | Meanwhile a second train had {a} passengers. How many passengers were in the two trains in the end?
~ the ride took {a} minutes | the train was {a} minutes late
~ the driver was {a} years old | the train had the number {a}

scene trees: tree, trees
= There were {a} trees in a park | A park had {a} trees | {N} counted {a} trees in a park
=* A park had {k} rows of {x} trees | There were {k} rows with {x} trees each in a park
=+ There were {a} oaks and {b} pines in a park, and no other trees | The only trees of a park were {a} oaks and {b} pines
+ gardeners planted {a} trees | {a} trees were planted
+ a school planted {a} trees | the children of a school added {a} trees
+ the city planted {a} trees along the path | along the path the city planted {a} trees
- a storm felled {a} trees | {a} trees fell in a storm
- {a} sick trees were cut down | gardeners cut down {a} sick trees
- {a} trees were removed for a road | to make room for a road, {a} trees were removed
+* {k} classes planted {x} trees each | {x} trees were planted by each of {k} classes
-* {k} rows of {x} trees were cut down | workers cut down {k} rows with {x} trees each
/- {f} of the trees burned down | a fire destroyed {f} of the trees
* the city {D} the number of trees | within a year the city {D} the number of trees
? How many trees were in the park then? | How many trees did the park have in the end? | How many trees were there in the end?
>/ {k} gardeners shared them | Then {k} gardeners shared the care of all the trees equally. How many trees did each gardener look after? | In the end {k} gardeners looked after all the trees, the same number each. How many trees was that for each of them?
>* [bird, birds] {k} birds sat in each tree | Then {k} birds sat in each tree. How many birds was that? | In the end {N} saw {k} birds in each of the trees. How many birds did {N} see?
>T there was still room for | The park had room for {a} trees. How many more trees could be planted then? | The plan was to have {a} trees. How many trees were still missing in the end?
>+ together they had | Another park had {a} trees. How many trees did both parks have together in the end? | In the forest next to it {N} counted {a} trees. How many trees was that in total, with those then in the park?
~ the oldest bench was {a} years old | the pond was {a} feet wide
~ the park opened {a} years ago | the path was {a} yards long
"""

HELD_OUT = """
scene museum: visitor, visitors
= There are {a} visitors in a museum | A museum opens with {a} visitors | {a} visitors walk through a museum
=* There are {k} groups of {x} visitors in a museum | A museum opens with {k} groups of {x} visitors
=+ There are {a} visitors upstairs and {b} visitors downstairs in a museum | A museum has {a} visitors upstairs and {b} downstairs
+ {a} visitors enter | before noon {a} visitors enter
+ a coach brings {a} visitors | {a} visitors come by coach
+ {a} painters come to see the pictures | to see the pictures, {a} painters come
- {a} visitors leave | at noon {a} visitors leave
- {a} visitors go to the garden cafe | the garden cafe draws {a} visitors out of the museum
- {a} visitors go home tired | tired of walking, {a} visitors go home
+* {k} tours of {x} people enter | {k} tours with {x} people each enter
-* {k} tours of {x} people leave | {k} tours with {x} people each leave
/- {f} of the visitors leave | at three o'clock {f} of the visitors leave
* the number of visitors {d} | after lunch the number of visitors {d}
? How many visitors are in the museum now? | How many visitors does the museum have in the end? | How many visitors are there in the end?
>/ {k} guides share them | The visitors are divided equally among {k} guides. How many visitors does each guide lead? | {k} guides take all the visitors, the same number each. How many visitors are with each guide?
>T there is still room for | At most {a} visitors are allowed. How many more may come in? | The museum has room for {a} visitors. How many more visitors fit?
>* [postcard, postcards] each one buys {k} postcards | Each visitor now there buys {k} postcards. How many postcards is that? | {N} sells {k} postcards to each of the visitors now in the museum. How many postcards does {N} sell?
~ the oldest picture is {a} years old | the hall is {a} feet high

scene honey: jar, jars
use has sells life
= {N} has {a} jars of honey | {N} fills {a} jars with honey | There are {a} jars of honey in the cellar of {N}
=* {N} has {k} beehives that give {x} jars of honey each | {N} fills {x} jars with honey from each of {k} beehives
=+ {N} has {a} jars of dark honey and {b} jars of light honey | {N} fills {a} jars with dark honey and {b} jars with light honey
+ {s} fills {a} more jars | {s} fills another {a} jars
+ an old beekeeper gives {o} {a} jars | {s} receives {a} jars from an old beekeeper
- {s} sells {a} jars | at the market {s} sells {a} jars
- {s} drops and breaks {a} jars | {a} jars fall down and break
- {s} gives {a} jars to {p} neighbours | {p} neighbours get {a} jars
- a bear steals {a} jars | in the night a bear steals {a} jars
+* {k} beehives give {x} jars each | {s} gets {x} jars from each of {k} beehives
-* {s} sells {x} jars to each of {k} shops | {k} shops buy {x} jars each
/- {s} sells {f} of the jars | a baker buys {f} of the jars
* a warm summer {d} {p} jars | in a warm summer the number of {p} jars {d}
~ a bee weighs less than {a} grams | the meadow is {a} yards wide

scene balloons: balloon, balloons
use has life
= {N} has {a} balloons | {N} blows up {a} balloons | There are {a} balloons at the party of {N}
=* {N} has {k} bundles of {x} balloons | {N} buys {k} bundles with {x} balloons each
=+ {N} has {a} pink and {b} green balloons | {N} blows up {a} pink balloons and {b} green ones
+ {s} blows up {a} more balloons | {s} blows up another {a} balloons
+ a clown brings {a} balloons | {s} gets {a} balloons from a clown
- {a} balloons burst | {s} hears {a} balloons burst
- {s} lets {a} balloons fly away | the wind takes {a} balloons
- {s} gives {a} balloons to the guests | the guests take {a} balloons
- the cat pops {a} balloons | {a} balloons are popped by the cat
+* {s} buys {k} bundles of {x} balloons | {k} bundles with {x} balloons each are delivered to {o}
-* {s} ties {x} balloons to each of {k} doors and leaves them there | {k} guests take {x} balloons home each
/- {f} of the balloons burst | the heat makes {f} of the balloons burst
* a second pack {d} {p} balloons | with a second pack the number of {p} balloons {d}
~ the cake has {a} candles | the party lasts {a} minutes

scene ferry: car, cars
= There were {a} cars on a ferry | A ferry carried {a} cars | {a} cars stood on a ferry
=* There were {k} lanes of {x} cars on a ferry | A ferry carried {k} lanes with {x} cars each
=+ There were {a} cars on the upper deck and {b} on the lower deck of a ferry | A ferry carried {a} cars on its upper deck and {b} on its lower deck
+ {a} cars drove on | in the harbour {a} cars drove on
+ {a} cars came on board at an island | at an island {a} cars came on board
- {a} cars drove off | on the coast {a} cars drove off
- {a} cars left at a small port | at a small port {a} cars left
- {a} cars moved to another ferry | another ferry took over {a} of the cars
- {a} broken cars were pulled ashore | a truck pulled {a} broken cars ashore
+* {k} lanes of {x} cars were filled | {k} more lanes with {x} cars each were filled
-* {k} lanes of {x} cars drove off | {k} lanes with {x} cars each emptied
/- {f} of the cars drove off | at the lighthouse {f} of the cars drove off
* the number of cars {D} | on the next trip the number of cars {D}
? How many cars were on the ferry then? | How many cars did the ferry carry in the end? | How many cars were on board in the end?
>/ they stood in {k} lanes | The cars stood in {k} equal lanes. How many cars were in each lane? | {N} guided all the cars into {k} equal lanes. How many cars were in each lane?
>T there was still room for | The ferry had room for {a} cars. How many more cars could it take then? | At most {a} cars were allowed. How many more cars could come on board then?
>* [dollar, dollars] each one paid {k} dollars | Each car then on the ferry paid {k} dollars more. How many dollars was that? | Each of the cars then on the ferry paid {k} dollars for a wash. How many dollars did they pay together?
~ the captain was {a} years old | the crossing took {a} minutes

scene comics: comic, comics
use has sells life
= {N} has {a} comics | {N} keeps {a} comics under the bed | There are {a} comics in the room of {N}
=* {N} has {k} shelves of {x} comics | {N} keeps {k} shelves with {x} comics each
=+ {N} has {a} funny comics and {b} sad comics | {N} keeps {a} funny comics and {b} sad ones
+ {s} buys {a} comics | at the station {s} buys {a} comics
+ {s} is given {a} comics by {p} aunt | {p} aunt sends {o} {a} comics
- {s} lends {a} comics to a friend | a friend borrows {a} comics
- {s} sells {a} comics | at a fair {s} sells {a} comics
- {s} tears {a} comics by accident and throws them away | {a} comics get wet and are thrown away
- {s} leaves {a} comics on a train | on a train {s} forgets {a} comics
+* {s} buys {k} packs of {x} comics | {s} orders {k} packs with {x} comics each
-* {s} lends {x} comics to each of {k} classmates | {k} classmates borrow {x} comics each
/- {s} gives {f} of the comics to a hospital | a hospital gets {f} of {p} comics
* a flea market {d} {p} comics | at a flea market {s} {d} the number of {p} comics
~ the bookcase is {a} inches wide | the first comic is {a} years old
"""
